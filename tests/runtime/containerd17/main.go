// containerd 1.7, whole: the line of releases whose files differ most from those of today, and that distributions and
// clouds still ship. A test switches CDI on in it.
package main

import (
	"fmt"
	"os"

	_ "github.com/containerd/containerd/cmd/containerd/builtins"
	"github.com/containerd/containerd/cmd/containerd/command"
)

func main() {
	if err := command.App().Run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
