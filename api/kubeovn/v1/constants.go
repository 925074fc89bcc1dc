package v1

// Names that Kube-OVN's users write.
const (
	// DefaultVpc is the name of Kube-OVN's default VPC. Weft's overlay takes its place.
	DefaultVpc = "ovn-cluster"
	// ProviderOVN is the provider of subnets that are switches of a VPC. A Subnet of another provider is the address pool of
	// the NetworkAttachmentDefinition "<name>.<namespace>".
	ProviderOVN = "ovn"
	// DefaultExternalSubnet is the external subnet of an EIP that names none.
	DefaultExternalSubnet = "ovn-vpc-external-network"
	// NATConfigMap holds the image of NAT gateways, under the key "image".
	NATConfigMap = "ovn-vpc-nat-config"
	// NATGatewayConfigMap turns NAT gateways on, by "enable-vpc-nat-gw": "true".
	NATGatewayConfigMap = "ovn-vpc-nat-gw-config"
	// ConfigNamespace is the namespace of both ConfigMaps, and of the gateways' pods.
	ConfigNamespace = "kube-system"
	// Finalizer is on every object that has something programmed.
	Finalizer = "kubeovn.io/kube-ovn-controller"
)

// Annotations of pods and namespaces.
const (
	// AnnotationLogicalSwitch names the Subnet of a pod, or, separated by commas, the Subnets of a namespace.
	AnnotationLogicalSwitch = "ovn.kubernetes.io/logical_switch"
	// AnnotationIPAddress asks for a fixed address.
	AnnotationIPAddress = "ovn.kubernetes.io/ip_address"
	// AnnotationMACAddress asks for a fixed MAC address.
	AnnotationMACAddress = "ovn.kubernetes.io/mac_address"
	// AnnotationIPPool lists the addresses, separated by commas or semicolons, that a workload's pods may have. The pods of a
	// StatefulSet get the address at the place of their ordinal.
	AnnotationIPPool = "ovn.kubernetes.io/ip_pool"
	// AnnotationNATGateway is on a NAT gateway's pod and names its VpcNatGateway.
	AnnotationNATGateway = "ovn.kubernetes.io/vpc_nat_gw"
)

// Types of conditions.
const (
	// ConditionReady is True when the object is in effect; the message says what is missing otherwise.
	ConditionReady = "Ready"
	// ConditionSupported is False when fields are set that Weft does not serve; the message names them. The rest of the object
	// works.
	ConditionSupported = "Supported"
	// ConditionMatched is on IptablesSnatRule: False when internalCIDR overlaps no subnet of the gateway's VPC.
	ConditionMatched = "Matched"
	// ConditionShadowed is on Vpc: True when static routes have no effect because others cover them.
	ConditionShadowed = "Shadowed"
)

// Reasons of conditions.
const (
	// ReasonReady comes with Ready=True.
	ReasonReady = "Ready"
	// ReasonInvalid means that a field must be corrected; the message names it.
	ReasonInvalid = "Invalid"
	// ReasonConflict means that another object holds what this one asks for.
	ReasonConflict = "Conflict"
	// ReasonMissing means that an object that this one names does not exist.
	ReasonMissing = "Missing"
	// ReasonPending means that something is under way; the message says what.
	ReasonPending = "Pending"
	// ReasonRefused: the northbound database refuses a row of the object, or the API server the StatefulSet of a gateway.
	ReasonRefused = "Refused"
	// ReasonDefaultVpc means that the object belongs to Kube-OVN's default VPC, whose place the overlay takes.
	ReasonDefaultVpc = "DefaultVpc"
	// ReasonDisabled means that NAT gateways are turned off by the ConfigMap ovn-vpc-nat-gw-config.
	ReasonDisabled = "Disabled"
	// ReasonInUse means that an object cannot go because others still use it.
	ReasonInUse = "InUse"
	// ReasonExhausted means that the subnet has no free address.
	ReasonExhausted = "Exhausted"
	// ReasonUnsupported comes with Supported=False.
	ReasonUnsupported = "Unsupported"
	// ReasonSupported comes with Supported=True.
	ReasonSupported = "Supported"
	// ReasonDefaultRoute comes with Shadowed=True: a route to 0.0.0.0/0 takes all packets.
	ReasonDefaultRoute = "DefaultRoute"
	// ReasonMatched comes with Matched=True.
	ReasonMatched = "Matched"
	// ReasonNoSubnet comes with Matched=False.
	ReasonNoSubnet = "NoSubnet"
)
