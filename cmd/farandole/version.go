package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by release builds (-ldflags "-X main.version=v1.2.3").
var version string

type versionCmd struct {
	jsonFlag
}

// buildVersion returns the version that was linked in, else the one that the Go tool
// recorded in the binary.
func buildVersion() (v, revision string) {
	v = version
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v, ""
	}
	if v == "" {
		v = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	return v, revision
}

// Run prints the version.
func (c *versionCmd) Run(a *app) error {
	v, revision := buildVersion()
	if c.JSON {
		return a.printJSON(struct {
			Version  string `json:"version"`
			Revision string `json:"revision,omitempty"`
			Go       string `json:"go"`
		}{v, revision, runtime.Version()})
	}
	return a.printf("%s", versionLine())
}

// versionLine is the version for people.
func versionLine() string {
	v, _ := buildVersion()
	return fmt.Sprintf("farandole %s (%s)", v, runtime.Version())
}
