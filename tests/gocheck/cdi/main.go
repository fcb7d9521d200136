// Command cdi answers what the CDI project's own library thinks of documents, so that ours can be compared with it.
//
// Standard input: one document a line (JSON). Standard output: one answer a line, in the same order:
// {"accepted": bool, "error": text, "minimum": version}; "minimum" is empty where the document does not parse.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

type answer struct {
	Accepted bool   `json:"accepted"`
	Error    string `json:"error"`
	Minimum  string `json:"minimum"`
}

func main() {
	folder, err := os.MkdirTemp("", "gocheck-cdi-")
	if err != nil {
		fail(err)
	}
	defer os.RemoveAll(folder)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 16<<20)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		if err := out.Encode(judge(filepath.Join(folder, "document.json"), in.Bytes())); err != nil {
			fail(err)
		}
	}
	if err := in.Err(); err != nil {
		fail(err)
	}
}

// judge has the library read the document from a file, as a runtime does; a panic of the library is a refusal.
func judge(path string, document []byte) (result answer) {
	defer func() {
		if caught := recover(); caught != nil {
			result.Accepted, result.Error = false, fmt.Sprint("panic: ", caught)
		}
	}()
	parsed, err := cdi.ParseSpec(document)
	if err != nil {
		return answer{Error: err.Error()}
	}
	if result.Minimum, err = specs.MinimumRequiredVersion(parsed); err != nil {
		return answer{Error: err.Error()}
	}
	if err := os.WriteFile(path, document, 0o600); err != nil {
		fail(err)
	}
	if _, err := cdi.ReadSpec(path, 0); err != nil {
		result.Error = err.Error()
		return result
	}
	result.Accepted = true
	return result
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
