package metrics

import (
	"fmt"
	"slices"
	"strings"
)

// Document returns docs/metrics.md.
func Document() string {
	var page strings.Builder
	page.WriteString(introduction)
	section(&page, "The agent", NewAgent("").Definitions())
	section(&page, "The controller", NewController("").Definitions())
	page.WriteString(reading)
	return page.String()
}

func section(page *strings.Builder, title string, definitions []Definition) {
	fmt.Fprintf(page, "\n## %s\n\n| metric | type | labels | what it is |\n|---|---|---|---|\n", title)
	slices.SortFunc(definitions, func(a, b Definition) int { return strings.Compare(a.Name, b.Name) })
	for _, d := range definitions {
		labels := make([]string, 0, len(d.Labels))
		for _, label := range d.Labels {
			labels = append(labels, "`"+label+"`")
		}
		fmt.Fprintf(page, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, strings.Join(labels, ", "), d.Help)
	}
}

const introduction = `<!-- Generated from internal/metrics by "make generate". Do not edit. -->
# Metrics

Agent and controller answer Prometheus at ` + "`/metrics`" + ` of their health address: ` + "`127.0.0.1:9469`" + ` (agent) and
` + "`127.0.0.1:9470`" + ` (controller; the manifests set ` + "`127.0.0.1:9479`" + `) unless ` + "`--health-address`" + ` says otherwise. There is no authentication, so the default is the
loopback address: programs on the node can read the page, pods cannot. For a Prometheus that is not on the node,
` + "`--metrics-address host:port`" + ` serves ` + "`/metrics`" + `, and nothing else, at the node's address as well; restrict access to it with
a firewall. Metrics contain counts and times, no names of pods and no addresses.

Both also have the usual ` + "`go_*` and `process_*`" + ` metrics. Names and labels below are kept stable between releases.
`

const reading = `
## What to watch

| question | query |
|---|---|
| Do pods get their network? | ` + "`histogram_quantile(0.99, sum by (network, le) (rate(weft_cni_request_duration_seconds_bucket{command=\"ADD\"}[5m])))`" + `; with ` + "`code!=\"0\"`" + ` for what fails (11: try again later) |
| Does a node lag behind? | ` + "`weft_engine_in_step == 0`" + ` for minutes; ` + "`weft_engine_failures > 0`" + ` |
| Do other programs change the node? | ` + "`increase(weft_engine_drift_total[1h]) > 0`" + `; after a restart of the switch, all its flows count as missing |
| Are addresses running out? | ` + "`weft_addresses_in_use / weft_addresses > 0.9`; `weft_controller_free_subnets < 5`" + ` |
| Is the API server away? | ` + "`weft_kube_watches`" + ` below what it is on other nodes; ` + "`rate(weft_kube_requests_total{status=\"error\"}[5m])`" + ` |
| Is there one controller at work? | ` + "`sum(weft_controller_leader) != 1`" + ` |
`
