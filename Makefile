# What users and engineers of Weft run. `make help` lists it.
SHELL := /bin/sh
GO = $(shell build/prepare --go)
BIN = bin
# Bare machines may run this without a home, and go keeps its caches there.
HOME ?= /root
export HOME
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS = -s -w -X main.version=$(VERSION)
# gRPC's tracing pages (golang.org/x/net/trace) import html/template, with which the linker keeps every exported method: 20 MB more.
TAGS = grpcnotrace

.DEFAULT_GOAL := help
# build is a folder as well.
.PHONY: help build image quickstart quickstart-down quickstart-vpc quickstart-vpc-down quickstart-neutron quickstart-neutron-down unit fuzz test test-all soak vm bench lint generate fmt clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

build: ## build weft, weft-cni, weft-flannel, weft-provider and weft-lab into bin/
	@GO=$(GO); for program in weft weft-cni weft-flannel weft-provider weft-lab; do \
	  CGO_ENABLED=0 $$GO build -trimpath -buildvcs=false -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/$$program || exit 1; done

image: build ## write Weft's image as an OCI archive, out/weft-image.tar; needs nft, Open vSwitch, OVN and jemalloc (build/prepare)
	@$(BIN)/weft-lab image --output out/weft-image.tar

quickstart: ## a cluster of two nodes on this machine, with a reachability matrix; NETWORK=overlay, flannel or both; as root
	@NETWORK='$(NETWORK)' build/quickstart up

quickstart-down: ## take the quick start's cluster down
	@build/quickstart down

quickstart-vpc: ## a cluster with VPCs on OVN, with a matrix of what reaches what; as root
	@build/quickstart-vpc up

quickstart-vpc-down: ## take the cluster with VPCs down
	@build/quickstart-vpc down

quickstart-neutron: ## a cluster beside an OpenStack, pods of two tenants on Neutron's networks, with a matrix of what reaches what; as root
	@build/quickstart-neutron up

quickstart-neutron-down: ## take the cluster beside an OpenStack down
	@build/quickstart-neutron down

unit: ## unit tests: no root, nothing installed, seconds
	@$(GO) test -timeout 10m ./...

fuzz: ## fuzz every parser with 200,000 inputs each
	@build/fuzz 200000

test: ## what a landing runs: unit, a short fuzzing, engines on the real switch, clusters in the lab and on the kernel's datapath; BASE=revision for what a change can reach; as root
	@BASE='$(BASE)' build/test

test-all: ## make test with every long repetition in full; as root
	@FULL=1 build/test

vm: ## clusters on the kernel's datapath, in a virtual machine; as root
	@build/test vm

bench: ## measure against peers: a table, and out/bench.json; ROWS=regexp for some rows; as root, on an idle machine
	@build/bench $(if $(ROWS),-rows '$(ROWS)') $(BENCHFLAGS)

soak: ## agents, switches, disks and API servers that fail under traffic, for half an hour; as root, on a machine of its own; PARTS=regexp
	@PARTS='$(PARTS)' FLAGS='$(FLAGS)' build/soak

lint: ## hold the code to the limits of .golangci.yml
	@build/lint

generate: ## generate deep copies, CRDs, the manifest from the chart, and the pages made from the code
	@GO=$(GO); PATH=$${GO%/*}:$$PATH $$GO generate ./api/... && \
	  (cd tools/chart && $$GO run . ../../deploy/chart ../../deploy) && \
	  $$GO test ./internal/metrics ./internal/overlay/pipeline ./internal/house -run TestDocument -update

fmt: ## format the code
	@cd tools && $(GO) tool gofumpt -w ..

clean: ## remove what was built
	@rm -rf $(BIN) out
