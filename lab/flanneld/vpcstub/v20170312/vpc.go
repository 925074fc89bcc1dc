// Package v20170312 replaces Tencent Cloud's VPC client, which the module proxy does not serve. It has the declarations that flannel's
// tencent-vpc backend needs to compile; its calls fail.
package v20170312

import "errors"

// ErrAbsent is the error of every call.
var ErrAbsent = errors.New("built without Tencent Cloud's client")

// Client is the cloud's client.
type Client struct{}

// Filter narrows a request.
type Filter struct {
	Name   *string
	Values []*string
}

// Route is a route of the cloud's route table.
type Route struct {
	RouteId, DestinationCidrBlock, GatewayType, GatewayId, RouteType *string
	Enabled                                                          *bool
}

// RouteTable is a route table of the cloud.
type RouteTable struct {
	RouteTableId *string
	RouteSet     []*Route
}

// DescribeRouteTablesRequest requests route tables.
type DescribeRouteTablesRequest struct{ Filters []*Filter }

// DescribeRouteTablesResponse holds route tables.
type DescribeRouteTablesResponse struct {
	Response *struct{ RouteTableSet []*RouteTable }
}

// RoutesRequest changes routes.
type RoutesRequest struct {
	RouteTableId *string
	Routes       []*Route
}

// NewClientWithSecretId returns a client whose calls fail.
func NewClientWithSecretId(_, _, _ string) (*Client, error) { return &Client{}, nil }

// NewDescribeRouteTablesRequest returns an empty request.
func NewDescribeRouteTablesRequest() *DescribeRouteTablesRequest {
	return &DescribeRouteTablesRequest{}
}

// NewDeleteRoutesRequest returns an empty request.
func NewDeleteRoutesRequest() *RoutesRequest { return &RoutesRequest{} }

// NewCreateRoutesRequest returns an empty request.
func NewCreateRoutesRequest() *RoutesRequest { return &RoutesRequest{} }

// DescribeRouteTables fails.
func (c *Client) DescribeRouteTables(*DescribeRouteTablesRequest) (*DescribeRouteTablesResponse, error) {
	return nil, ErrAbsent
}

// DeleteRoutes fails.
func (c *Client) DeleteRoutes(*RoutesRequest) (any, error) { return nil, ErrAbsent }

// CreateRoutes fails.
func (c *Client) CreateRoutes(*RoutesRequest) (any, error) { return nil, ErrAbsent }
