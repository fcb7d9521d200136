package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	cadvisor "github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

// never is longer than any run: CPU sets are written to no container here.
const never = 24 * time.Hour

// newDeviceManager is what NewManagerImpl calls with /var/lib/kubelet/device-plugins/kubelet.sock.
//
//go:linkname newDeviceManager k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newDeviceManager(klog.Logger, string, []cadvisor.Node, topologymanager.Store) (*devicemanager.ManagerImpl, error)

// settings are those of KubeletConfiguration that matter here. Folder stands for /var/lib/kubelet.
type settings struct {
	Folder       string            `json:"folder"`
	Policy       string            `json:"policy"`
	Scope        string            `json:"scope"`
	Options      map[string]string `json:"options"`
	CPUPolicy    string            `json:"cpu_policy"`
	MemoryPolicy string            `json:"memory_policy"`
	Reserved     string            `json:"reserved"`
	// ReservedMemory is what the system keeps of the memory of node 0, in bytes; a static memory manager wants some.
	ReservedMemory int64      `json:"reserved_memory"`
	Nodes          []numaNode `json:"nodes"`
}

// numaNode is one node of the machine; Cores lists each core's threads. HugePages: how many, by their size in KiB.
type numaNode struct {
	Socket    int               `json:"socket"`
	Cores     [][]int           `json:"cores"`
	Memory    uint64            `json:"memory"`
	HugePages map[uint64]uint64 `json:"huge_pages"`
	Distances []uint64          `json:"distances"`
}

type podAsked struct {
	UID            string           `json:"uid"`
	InitContainers []containerAsked `json:"init_containers"`
	Containers     []containerAsked `json:"containers"`
}

type containerAsked struct {
	Name      string           `json:"name"`
	CPUMilli  int64            `json:"cpu_milli"`
	Memory    int64            `json:"memory"`
	HugePages map[string]int64 `json:"huge_pages"`
	Devices   map[string]int   `json:"devices"`
}

type outcome struct {
	Admitted   bool             `json:"admitted"`
	Reason     string           `json:"reason"`
	Message    string           `json:"message"`
	Containers []containerGiven `json:"containers"`
}

type containerGiven struct {
	Devices  []string `json:"devices"`
	CPUs     []int    `json:"cpus"`
	Affinity []int    `json:"affinity"`
}

type kubelet struct {
	topology topologymanager.Manager
	devices  *devicemanager.ManagerImpl
	cpus     cpumanager.Manager
	mutex    sync.Mutex
	pods     map[types.UID]*v1.Pod
}

// start does what containerManagerImpl does in NewContainerManager and Start, in its order.
func start(wanted settings) (*kubelet, error) {
	ctx, logger := context.Background(), klog.Logger{}
	machine := machineInfo(wanted.Nodes)
	reserved, err := cpuset.Parse(wanted.Reserved)
	if err != nil {
		return nil, err
	}
	reservation := v1.ResourceList{
		v1.ResourceCPU:    *resource.NewQuantity(int64(reserved.Size()), resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(wanted.ReservedMemory, resource.BinarySI),
	}
	node := &kubelet{pods: map[types.UID]*v1.Pod{}}
	node.topology, err = topologymanager.NewManager(logger, machine.Topology, wanted.Policy, wanted.Scope, wanted.Options)
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(wanted.Folder, "device-plugins", "kubelet.sock")
	if node.devices, err = newDeviceManager(logger, socket, machine.Topology, node.topology); err != nil {
		return nil, err
	}
	node.topology.AddHintProvider(logger, node.devices)
	node.cpus, err = cpumanager.NewManager(
		logger, wanted.CPUPolicy, nil, never, machine, reserved, reservation, wanted.Folder, node.topology)
	if err != nil {
		return nil, err
	}
	node.topology.AddHintProvider(logger, node.cpus)
	memory, err := memorymanager.NewManager(
		logger, wanted.MemoryPolicy, machine, reservation, reservedMemory(wanted), wanted.Folder, node.topology)
	if err != nil {
		return nil, err
	}
	node.topology.AddHintProvider(logger, memory)

	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	containers := containermap.NewContainerMap
	if err := node.cpus.Start(ctx, node.active, ready, noStatus{}, noRuntime{}, containers()); err != nil {
		return nil, err
	}
	if err := memory.Start(ctx, node.active, ready, noStatus{}, noRuntime{}, containers()); err != nil {
		return nil, err
	}
	return node, node.devices.Start(logger, node.active, ready, containers(), sets.New[string]())
}

func reservedMemory(wanted settings) []kubeletconfig.MemoryReservation {
	if wanted.ReservedMemory == 0 {
		return nil
	}
	limits := v1.ResourceList{v1.ResourceMemory: *resource.NewQuantity(wanted.ReservedMemory, resource.BinarySI)}
	return []kubeletconfig.MemoryReservation{{NumaNode: 0, Limits: limits}}
}

func (k *kubelet) stop() { _ = k.devices.Stop(klog.Logger{}) }

func (k *kubelet) active() []*v1.Pod {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	pods := make([]*v1.Pod, 0, len(k.pods))
	for _, pod := range k.pods {
		pods = append(pods, pod)
	}
	return pods
}

// wait returns the healthy devices with their NUMA nodes, once there are so many.
func (k *kubelet) wait(name string, healthy int, patience time.Duration) (any, error) {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		usable := k.devices.GetAllocatableDevices(klog.Logger{})[name]
		if len(usable) == healthy {
			nodes := make(map[string][]int64, healthy)
			for id, device := range usable {
				nodes[id] = []int64{}
				for _, node := range device.GetTopology().GetNodes() {
					nodes[id] = append(nodes[id], node.ID)
				}
			}
			return map[string]any{"devices": nodes}, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%d healthy %s after %s, and not %d", len(usable), name, patience, healthy)
		}
	}
}

// admit adds the pod to the active ones first, as kubelet does: else the devices of its first container would count as
// free again when its second one asks.
func (k *kubelet) admit(asked podAsked) outcome {
	ctx, pod := context.Background(), made(asked)
	k.mutex.Lock()
	k.pods[pod.UID] = pod
	k.mutex.Unlock()
	result := k.topology.Admit(ctx, &lifecycle.PodAdmitAttributes{Pod: pod, Operation: lifecycle.AddOperation})
	said := outcome{Admitted: result.Admit, Reason: result.Reason, Message: result.Message}
	for i := range pod.Spec.Containers {
		said.Containers = append(said.Containers, k.given(pod, &pod.Spec.Containers[i]))
	}
	if !result.Admit {
		k.remove(asked.UID)
		return said
	}
	for _, container := range all(pod) {
		k.topology.AddContainer(klog.Logger{}, pod, container, containerID(pod, container))
	}
	return said
}

func (k *kubelet) given(pod *v1.Pod, container *v1.Container) containerGiven {
	given := containerGiven{Devices: []string{}}
	for _, instances := range k.devices.GetDevices(string(pod.UID), container.Name) {
		for id := range instances {
			given.Devices = append(given.Devices, id)
		}
	}
	given.CPUs = k.cpus.GetExclusiveCPUs(string(pod.UID), container.Name).List()
	if mask := k.topology.GetAffinity(klog.Logger{}, string(pod.UID), container.Name).NUMANodeAffinity; mask != nil {
		given.Affinity = mask.GetBits()
	}
	return given
}

func (k *kubelet) remove(uid string) {
	k.mutex.Lock()
	pod := k.pods[types.UID(uid)]
	delete(k.pods, types.UID(uid))
	k.mutex.Unlock()
	if pod == nil {
		return
	}
	for _, container := range all(pod) {
		_ = k.topology.RemoveContainer(klog.Logger{}, containerID(pod, container))
	}
}

func all(pod *v1.Pod) []*v1.Container {
	var found []*v1.Container
	for i := range pod.Spec.InitContainers {
		found = append(found, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		found = append(found, &pod.Spec.Containers[i])
	}
	return found
}

func containerID(pod *v1.Pod, container *v1.Container) string {
	return string(pod.UID) + "/" + container.Name
}

func made(asked podAsked) *v1.Pod {
	pod := &v1.Pod{}
	pod.Name, pod.Namespace, pod.UID = asked.UID, "default", types.UID(asked.UID)
	pod.Spec.InitContainers, pod.Spec.Containers = containers(asked.InitContainers), containers(asked.Containers)
	return pod
}

func containers(asked []containerAsked) []v1.Container {
	var made []v1.Container
	for _, each := range asked {
		amounts := v1.ResourceList{
			v1.ResourceCPU:    *resource.NewMilliQuantity(each.CPUMilli, resource.DecimalSI),
			v1.ResourceMemory: *resource.NewQuantity(each.Memory, resource.BinarySI),
		}
		for size, bytes := range each.HugePages {
			amounts[v1.ResourceName(v1.ResourceHugePagesPrefix+size)] = *resource.NewQuantity(bytes, resource.BinarySI)
		}
		for name, count := range each.Devices {
			amounts[v1.ResourceName(name)] = *resource.NewQuantity(int64(count), resource.DecimalSI)
		}
		made = append(made, v1.Container{
			Name: each.Name, Resources: v1.ResourceRequirements{Limits: amounts, Requests: amounts.DeepCopy()},
		})
	}
	return made
}

func machineInfo(nodes []numaNode) *cadvisor.MachineInfo {
	info, sockets := &cadvisor.MachineInfo{}, sets.New[int]()
	for id, each := range nodes {
		node := cadvisor.Node{Id: id, Memory: each.Memory, Distances: each.Distances}
		for kib, count := range each.HugePages {
			node.HugePages = append(node.HugePages, cadvisor.HugePagesInfo{PageSize: kib, NumPages: count})
		}
		for number, threads := range each.Cores {
			node.Cores = append(node.Cores, cadvisor.Core{Id: number, Threads: threads, SocketID: each.Socket})
			info.NumCores += len(threads)
			info.NumPhysicalCores++
		}
		info.MemoryCapacity += each.Memory
		info.Topology = append(info.Topology, node)
		sockets.Insert(each.Socket)
	}
	info.NumSockets = sockets.Len()
	return info
}

// noStatus and noRuntime stand for the rest of kubelet: no container has started, so that none is to be changed.
type noStatus struct{}

func (noStatus) GetPodStatus(types.UID) (v1.PodStatus, bool) { return v1.PodStatus{}, false }

type noRuntime struct{}

func (noRuntime) UpdateContainerResources(context.Context, string, *runtimeapi.ContainerResources) error {
	return nil
}
