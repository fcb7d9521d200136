// Wire prints what the node APIs of Kubernetes look like on the wire, as JSON: the surface that the
// definitions under proto/ must have. It reads the descriptors compiled into the upstream Go packages,
// so it tells what kubelets and runtimes speak and not what some text says they do.
//
// Output: {"modules": {module path: version},
// "apis": {Go package: {"services": …, "messages": …, "enums": …}}}, all by full protobuf name.
// Keys come sorted, so the same versions give the same bytes.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	_ "k8s.io/cri-api/pkg/apis/runtime/v1"
	_ "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	_ "k8s.io/kubelet/pkg/apis/dra-health/v1"
	_ "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	_ "k8s.io/kubelet/pkg/apis/dra/v1"
	_ "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	_ "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	_ "k8s.io/kubelet/pkg/apis/podresources/v1"
)

type surface struct {
	Modules map[string]string `json:"modules"`
	APIs    map[string]api    `json:"apis"`
}

type api struct {
	Services map[protoreflect.FullName]map[protoreflect.Name]method `json:"services"`
	Messages map[protoreflect.FullName]map[protoreflect.Name]field  `json:"messages"`
	Enums    map[protoreflect.FullName]map[protoreflect.Name]int32  `json:"enums"`
}

type method struct {
	Request         protoreflect.FullName `json:"request"`
	Response        protoreflect.FullName `json:"response"`
	ClientStreaming bool                  `json:"client_streaming"`
	ServerStreaming bool                  `json:"server_streaming"`
}

// field is a message's field. Type is a scalar's name, or the full name of a message or an enum, or
// map<key, value> of these. Presence tells whether unset differs from the default. Oneof leaves out those
// that the compiler makes for `optional`.
type field struct {
	Number   protoreflect.FieldNumber `json:"number"`
	Type     string                   `json:"type"`
	Label    string                   `json:"label"`
	Packed   bool                     `json:"packed"`
	Presence bool                     `json:"presence"`
	Oneof    protoreflect.Name        `json:"oneof,omitempty"`
}

// taken names the calls that ours has of an API which it does not have whole. Of such an API only these calls
// are told, with all messages and enums that they lead to.
var taken = map[string][]protoreflect.FullName{
	"k8s.io/cri-api/pkg/apis/runtime/v1": {
		"runtime.v1.RuntimeService.Version",
		"runtime.v1.RuntimeService.Status",
	},
}

func main() {
	found := surface{Modules: moduleVersions(), APIs: map[string]api{}}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		goPackage := file.Options().(*descriptorpb.FileOptions).GetGoPackage()
		if !strings.HasPrefix(goPackage, "k8s.io/") {
			return true
		}
		described := newAPI()
		if calls, partly := taken[goPackage]; partly {
			described.addCalls(calls)
		} else {
			described.addFile(file)
		}
		found.APIs[goPackage] = described
		return true
	})
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	out.SetIndent("", " ")
	if err := out.Encode(found); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// moduleVersions names the API modules that this binary was built with.
func moduleVersions() map[string]string {
	versions := map[string]string{}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		panic("built without module support: versions are unknown")
	}
	for _, dependency := range info.Deps {
		if dependency.Path == "k8s.io/kubelet" || dependency.Path == "k8s.io/cri-api" {
			versions[dependency.Path] = dependency.Version
		}
	}
	return versions
}

func newAPI() api {
	return api{
		Services: map[protoreflect.FullName]map[protoreflect.Name]method{},
		Messages: map[protoreflect.FullName]map[protoreflect.Name]field{},
		Enums:    map[protoreflect.FullName]map[protoreflect.Name]int32{},
	}
}

// addFile adds all that a file declares, used or not.
func (a api) addFile(file protoreflect.FileDescriptor) {
	for i := range file.Services().Len() {
		methods := file.Services().Get(i).Methods()
		for j := range methods.Len() {
			a.addCall(methods.Get(j))
		}
	}
	for i := range file.Messages().Len() {
		a.addMessage(file.Messages().Get(i))
	}
	for i := range file.Enums().Len() {
		a.addEnum(file.Enums().Get(i))
	}
}

func (a api) addCalls(names []protoreflect.FullName) {
	for _, name := range names {
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			panic(fmt.Sprintf("%s: %v", name, err))
		}
		a.addCall(found.(protoreflect.MethodDescriptor))
	}
}

func (a api) addCall(call protoreflect.MethodDescriptor) {
	service := call.Parent().FullName()
	if a.Services[service] == nil {
		a.Services[service] = map[protoreflect.Name]method{}
	}
	a.Services[service][call.Name()] = method{
		Request:         call.Input().FullName(),
		Response:        call.Output().FullName(),
		ClientStreaming: call.IsStreamingClient(),
		ServerStreaming: call.IsStreamingServer(),
	}
	a.addMessage(call.Input())
	a.addMessage(call.Output())
}

// addMessage adds a message with all that is nested in it or that its fields lead to. Map entries are told as
// part of their field's type alone.
func (a api) addMessage(message protoreflect.MessageDescriptor) {
	name := message.FullName()
	if _, known := a.Messages[name]; known {
		return
	}
	fields := map[protoreflect.Name]field{}
	if !message.IsMapEntry() {
		a.Messages[name] = fields
	}
	for i := range message.Fields().Len() {
		f := message.Fields().Get(i)
		fields[f.Name()] = describe(f)
		if f.Message() != nil {
			a.addMessage(f.Message())
		}
		if f.Enum() != nil {
			a.addEnum(f.Enum())
		}
	}
	for i := range message.Messages().Len() {
		a.addMessage(message.Messages().Get(i))
	}
	for i := range message.Enums().Len() {
		a.addEnum(message.Enums().Get(i))
	}
}

func (a api) addEnum(enum protoreflect.EnumDescriptor) {
	values := map[protoreflect.Name]int32{}
	for i := range enum.Values().Len() {
		values[enum.Values().Get(i).Name()] = int32(enum.Values().Get(i).Number())
	}
	a.Enums[enum.FullName()] = values
}

func describe(f protoreflect.FieldDescriptor) field {
	described := field{
		Number:   f.Number(),
		Type:     typeName(f),
		Label:    f.Cardinality().String(),
		Packed:   f.IsPacked(),
		Presence: f.HasPresence(),
	}
	if oneof := f.ContainingOneof(); oneof != nil && !oneof.IsSynthetic() {
		described.Oneof = oneof.Name()
	}
	return described
}

func typeName(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return fmt.Sprintf("map<%s, %s>", typeName(f.MapKey()), typeName(f.MapValue()))
	case f.Message() != nil:
		return string(f.Message().FullName())
	case f.Enum() != nil:
		return string(f.Enum().FullName())
	default:
		return f.Kind().String()
	}
}
