package status

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// screen is the maximum number of nodes in the text, and half of it that of findings of a kind; JSON has all.
const screen = 20

// Text writes the report as text: one screen, with the nodes that are not ready before the others.
func (r *Report) Text(w io.Writer) error {
	out := &strings.Builder{}
	r.head(out)
	r.nodeTable(out)
	findings(out, "Wrong", r.Problems)
	findings(out, "Worth knowing", r.Warnings)
	switch {
	case r.OK && len(r.Warnings) == 0:
		out.WriteString("\nNo problems found.\n")
	case r.OK:
		out.WriteString("\nNothing is wrong.\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func (r *Report) head(out *strings.Builder) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, value string) { _, _ = fmt.Fprintf(table, "%s\t%s\n", name, value) } // writing to a Builder cannot fail
	if r.Network != nil || len(r.Networks) == 0 {
		row("Network", r.networkLine())
	}
	for _, n := range r.Networks {
		row("Network "+n.Name, n.Line)
	}
	row("Controller", r.controllerLine())
	if r.Agents != nil {
		row("Agents", fmt.Sprintf("%d of %d ready", r.Agents.Ready, r.Agents.Wanted))
	} else {
		row("Agents", "run by no DaemonSet")
	}
	ready := 0
	for i := range r.Nodes {
		if r.Nodes[i].Ready {
			ready++
		}
	}
	row("Nodes", fmt.Sprintf("%d of %d ready", ready, len(r.Nodes)))
	row("Versions", r.versionLine())
	_ = table.Flush() // writing to a Builder cannot fail
}

func (r *Report) networkLine() string {
	n := r.Network
	if n == nil {
		return "not known"
	}
	if !n.Valid {
		return "not valid: " + n.Message
	}
	words := []string{n.Mode, "pods"}
	for _, p := range n.Ranges {
		words = append(words, fmt.Sprintf("%s (a /%d for each node)", p.CIDR, 32-p.HostSubnetLength))
	}
	words = append(words, "services", n.ServiceNetwork)
	if n.MTU != 0 {
		words = append(words, "mtu", strconv.Itoa(n.MTU))
	}
	return strings.Join(words, " ")
}

func (r *Report) controllerLine() string {
	c := &r.Controller
	leader := "no leader"
	if c.Leader != "" {
		name, _, _ := strings.Cut(c.Leader, "_") // the suffix is random
		leader = "led by " + name
	}
	if c.Replicas == nil {
		return leader + ", run by no Deployment"
	}
	return fmt.Sprintf("%s, %d of %d replicas ready", leader, c.Replicas.Ready, c.Replicas.Wanted)
}

func (r *Report) versionLine() string {
	var parts []string
	for _, v := range []struct{ key, name string }{{"weft", "weft"}, {"openVSwitch", "Open vSwitch"}, {"kernel", "kernel"}, {"datapath", "datapath"}} {
		switch all := r.Versions[v.key]; len(all) {
		case 0:
		case 1:
			parts = append(parts, v.name+" "+all[0].Version)
		default:
			parts = append(parts, v.name+" "+spell(all))
		}
	}
	if len(parts) == 0 {
		return "not known"
	}
	return strings.Join(parts, "; ")
}

// nodeTable lists the nodes, first those that are not ready.
func (r *Report) nodeTable(out *strings.Builder) {
	if len(r.Nodes) == 0 {
		return
	}
	out.WriteByte('\n')
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NODE\tREADY\tAGENT\tSUBNET\tPODS\tADDRESSES\tIN STEP\tWEFT") // writing to a Builder cannot fail
	shown := 0
	for _, ready := range []bool{false, true} {
		for i := range r.Nodes {
			if n := &r.Nodes[i]; n.Ready == ready && shown < screen {
				shown++
				_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d of %d\t%s\t%s\n", n.Name, yes(n.Ready), n.Agent, dash(n.Subnet),
					n.Attachments, n.AddressesUsed, n.AddressesTotal, inStep(n), dash(n.Weft))
			}
		}
	}
	_ = table.Flush() // writing to a Builder cannot fail
	if more := len(r.Nodes) - shown; more > 0 {
		fmt.Fprintf(out, "and %d more nodes (-o json has all)\n", more)
	}
}

// inStep returns which engines are not in step.
func inStep(n *Node) string {
	var behind []string
	for _, e := range n.Engines {
		if !e.InStep {
			behind = append(behind, e.Name)
		}
	}
	switch {
	case len(behind) > 0:
		return "no: " + strings.Join(behind, ",")
	case n.EnginesInStep:
		return "yes"
	}
	return "-"
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// findings lists findings: the object, the problem, and in the next line what to do.
func findings(out *strings.Builder, title string, all []Finding) {
	if len(all) == 0 {
		return
	}
	out.WriteString("\n" + title + ":\n")
	for i, f := range all {
		if i == screen/2 {
			fmt.Fprintf(out, "  and %d more (-o json has all)\n", len(all)-screen/2)
			return
		}
		out.WriteString("  " + f.Object + ": " + f.What + "\n")
		if f.Next != "" {
			out.WriteString("    -> " + f.Next + "\n")
		}
	}
}
