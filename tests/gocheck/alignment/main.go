// Alignment is the part of a kubelet that decides where a pod's devices and CPUs come from, and nothing else of it:
// kubelet's own topology, device, CPU and memory managers, put together as its container manager puts them together,
// on a machine that is described and not looked at. A device plugin registers with it as with any kubelet.
//
// It reads commands, one JSON object a line, and answers each with one line:
//
//	{"start": {"folder", "policy", "scope", "options", "cpu_policy", "memory_policy", "reserved", "reserved_memory",
//	    "nodes"}}
//	    first; {} or {"error"}, which is what kubelet would end with
//	{"wait": {"resource", "healthy"}}   until so many devices are healthy; {"devices": {id: [NUMA node]}}
//	{"admit": {"uid", "init_containers", "containers": [{"name", "cpu_milli", "memory", "huge_pages": {size: bytes},
//	    "devices": {resource: count}}]}}
//	    {"admitted", "reason", "message", "containers": [{"devices", "cpus", "affinity"}]}: also for a refused pod, what
//	    its containers had been given by then. affinity: the NUMA nodes kept to, null where left free
//	{"remove": uid}                     the pod has ended
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"k8s.io/klog/v2"
)

type command struct {
	Start  *settings `json:"start"`
	Wait   *awaited  `json:"wait"`
	Admit  *podAsked `json:"admit"`
	Remove *string   `json:"remove"`
}

type awaited struct {
	Resource string `json:"resource"`
	Healthy  int    `json:"healthy"`
}

type refusal struct {
	Error string `json:"error"`
}

const patience = 60 * time.Second

func main() {
	klog.SetLoggerWithOptions(klog.Logger{}, klog.ContextualLogger(true))
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	out := json.NewEncoder(os.Stdout)
	var node *kubelet
	for lines.Scan() {
		answer, err := obey(&node, lines.Bytes())
		if err != nil {
			answer = refusal{err.Error()}
		}
		if err := out.Encode(answer); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if node != nil {
		node.stop()
	}
}

func obey(node **kubelet, line []byte) (any, error) {
	var asked command
	if err := json.Unmarshal(line, &asked); err != nil {
		return nil, err
	}
	switch {
	case asked.Start != nil:
		started, err := start(*asked.Start)
		*node = started
		return struct{}{}, err
	case *node == nil:
		return nil, fmt.Errorf("the first command has to be start")
	case asked.Wait != nil:
		return (*node).wait(asked.Wait.Resource, asked.Wait.Healthy, patience)
	case asked.Admit != nil:
		return (*node).admit(*asked.Admit), nil
	case asked.Remove != nil:
		(*node).remove(*asked.Remove)
		return struct{}{}, nil
	}
	return nil, fmt.Errorf("no such command: %s", line)
}
