// Command grafana reads a dashboard by the types that Grafana publishes for programs that write dashboards.
//
// Standard input: the dashboard (JSON). Standard output: {"errors": [text], "panels": {kind: count}}. The types are
// strict: a field that Grafana does not know, one of another type and one that is missing are errors, each with its
// place, also in what belongs to a kind of panel or to Prometheus's queries.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/grafana/grafana-foundation-sdk/go/units"
)

// The units that are in use, under the names that Grafana has for them.
var knownUnits = []string{
	units.NoUnit, units.Percent, units.PercentUnit, units.Celsius, units.Watt, units.MegahertzRotation,
	units.BytesIEC, units.Mebibytes, units.BytesPerSecondSI, units.Seconds, units.CountsPerSecond,
}

// The kinds of panels whose options and field options are read strictly, as registered below.
var knownPanels = []string{"timeseries", "stat", "table"}

type answer struct {
	Errors []string       `json:"errors"`
	Panels map[string]int `json:"panels"`
}

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(judge(text))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func judge(text []byte) answer {
	types := cog.NewRuntime()
	types.RegisterPanelcfgVariant(timeseries.VariantConfig())
	types.RegisterPanelcfgVariant(stat.VariantConfig())
	types.RegisterPanelcfgVariant(table.VariantConfig())
	types.RegisterDataqueryVariant(prometheus.VariantConfig())
	result := answer{Errors: []string{}, Panels: map[string]int{}}
	var read dashboard.Dashboard
	result.add("", read.UnmarshalJSONStrict(text))
	if len(result.Errors) > 0 {
		return result
	}
	read = dashboard.Dashboard{} // the strict reading loses the panels that it has found to be right
	if err := json.Unmarshal(text, &read); err != nil {
		result.add("", err)
	}
	for _, one := range read.Panels {
		if one.Panel != nil {
			result.panel(*one.Panel)
		}
	}
	result.add("", read.Validate())
	return result
}

// panel adds what the strict types leave open: they pass over kinds, queries and units that they do not know.
func (result *answer) panel(panel dashboard.Panel) {
	where := fmt.Sprintf("panel %d", *panel.Id)
	result.Panels[panel.Type]++
	if !slices.Contains(knownPanels, panel.Type) {
		result.say(where, fmt.Sprintf("kind %q is none that is checked", panel.Type))
	}
	for _, target := range panel.Targets {
		switch target.(type) {
		case prometheus.Dataquery, *prometheus.Dataquery:
		default:
			result.say(where, fmt.Sprintf("a query was read as %T", target))
		}
	}
	if panel.FieldConfig == nil || panel.FieldConfig.Defaults.Unit == nil {
		result.say(where, "no unit")
	} else if unit := *panel.FieldConfig.Defaults.Unit; !slices.Contains(knownUnits, unit) {
		result.say(where, fmt.Sprintf("unit %q is none that is known", unit))
	}
}

func (result *answer) add(where string, err error) {
	if err == nil {
		return
	}
	if several, ok := err.(cog.BuildErrors); ok {
		for _, one := range several {
			result.say(where, one.Error())
		}
		return
	}
	result.say(where, err.Error())
}

func (result *answer) say(where, what string) {
	if where != "" {
		what = where + ": " + what
	}
	result.Errors = append(result.Errors, what)
}
