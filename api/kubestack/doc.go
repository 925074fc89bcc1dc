// Package kubestack holds the messages and services of KubeStack's gRPC interface, generated from kubestack.proto. Package
// internal/neutron/provider serves them.
package kubestack

//go:generate go build -modfile=../../tools/go.mod -o ../../bin/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
//go:generate protoc --plugin=../../bin/protoc-gen-go --plugin=../../bin/protoc-gen-go-grpc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative kubestack.proto
