# Plain `make` prints what there is to make.

SHELL       := bash
.SHELLFLAGS := -o pipefail -c # a test that fails, fails through a filter, too

# Tools are pinned here, and live in ./bin under a name that has the version in
# it: a new pin installs a new tool, whatever an older checkout left behind.
LINT_VERSION            := v2.14.0
PROTOC_GEN_GO_VERSION   := v1.36.12
PROTOC_GEN_GRPC_VERSION := v1.6.2

LINT            := bin/golangci-lint-$(LINT_VERSION)
PROTOC_GEN_GO   := bin/protoc-gen-go-$(PROTOC_GEN_GO_VERSION)
PROTOC_GEN_GRPC := bin/protoc-gen-go-grpc-$(PROTOC_GEN_GRPC_VERSION)

MODULE   := github.com/shoal-serving/shoal
FUZZTIME ?= 20s

# install builds tool $(1) at version $(2) and gives it its name in ./bin. It
# compiles in a folder of its own, so that two of them cannot meet.
install = GOBIN=$(CURDIR)/bin/$(notdir $@).tmp go install $(1)@$(2) && mv bin/$(notdir $@).tmp/* $@ && rmdir bin/$(notdir $@).tmp

# tests prints "package test" for each test whose name starts with $(1).
tests = go test -list '^$(1)' ./... | awk '/^$(1)/ { names[n++] = $$1 } /^ok/ { for (i = 0; i < n; i++) print $$2, names[i]; n = 0 }'

# list prints the targets of file $(2) that have a description, with $(1) before each, in
# columns of $(3).
list = awk -F ':.*\#\# ' '/^[a-z0-9-]+:.*\#\# / { printf "$(1)%-$(3)s %s\n", $$1, $$2 }' $(2)

.PHONY: help
help: ## print this list
	@$(call list,make ,Makefile,8)

.PHONY: deps
deps: onnxruntime ## download what a build needs: Go modules and ONNX Runtime (28 MB)
	go mod download

.PHONY: test-deps
test-deps: deps linter numpy sklearn pillow ## download what tests need, too: the linter, numpy, scikit-learn and Pillow (400 MB)

# Not in the list: parts of these, for .ci/run.
.PHONY: linter onnxruntime numpy sklearn pillow
linter: $(LINT)
onnxruntime:
	tools/get-onnxruntime lib
numpy:
	tools/get-numpy bin/worker
	NUMPY=1.26.4 tools/get-numpy bin/worker-older
sklearn:
	tools/get-numpy bin/sklearn scikit-learn==1.9.1 scipy==1.17.1 joblib==1.6.0 threadpoolctl==3.8.0 narwhals==2.28.0 cloudpickle==3.1.2
pillow:
	tools/get-numpy bin/pillow pillow==13.0.0

.PHONY: models
models: ## download and generate the models for measurements (265 MB)
	tools/get-models models

.PHONY: build
build: ## build bin/shoal
	go build -trimpath -o bin/shoal ./cmd/shoal

.PHONY: gpu-check
gpu-check: build ## check ONNX models on this machine's GPUs, and print a report; LIBRARY=libonnxruntime.so of onnxruntime-gpu
	tools/gpu-check $(LIBRARY)

.PHONY: check
check: lint test race ## lint, test, race: what a commit must pass

.PHONY: test
test: ## run the tests
	go test ./...

.PHONY: cell-demo
cell-demo: build ## run four servers, a cell and Envoy here, with clients; tools/cell-demo kill ends one
	tools/get-envoy
	tools/cell-demo

.PHONY: cell-test
cell-test: build numpy ## kill nodes, Envoys and cells under load, and roll bad versions back; real processes; 3 min
	tools/get-envoy
	go test -tags e2e -count 1 -v -run 'Cell' ./test/e2e | grep -E '^(---|ok|FAIL|panic)|figures:' | awk -f tools/cell-figures.awk

.PHONY: race
race: ## run the tests with the race detector
	go test -race ./...

.PHONY: fuzz
fuzz: ## fuzz each target for FUZZTIME (20s)
	@$(call tests,Fuzz) | while read -r package target; do \
		echo "== $$package $$target"; \
		go test $$package -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) || exit 1; \
	done

# Not in the list: for .ci/run, which counts each target.
.PHONY: fuzz-targets
fuzz-targets:
	@$(call tests,Fuzz)

.PHONY: lint
lint: $(LINT) ## run the linter
	$(LINT) run

.PHONY: e2e
e2e: build ## test the built binary
	go test -tags e2e -count 1 ./test/e2e/... ./test/proofs/...

.PHONY: docs
docs: ## build the documentation site into ./dist/site, without warnings
	tools/docs/build dist/site

.PHONY: web
web: ## build the dashboard from web/ into internal/dashboard/dist; needs Node.js 20
	cd web && npm install --no-save --no-audit --no-fund && npm run build

.PHONY: reference
reference: ## write the generated parts of docs/reference
	REFERENCE=write go test -count 1 -run 'TestTheReference' $$(grep -rl --include='*_test.go' 'func TestTheReference' . | xargs dirname | sort -u)
	python3 tools/docs/python_api.py

.PHONY: dist
dist: ## pack the server with all that it needs into ./dist
	tools/dist dist

.PHONY: release
release: ## build all packages into ./dist/release: tarballs, wheels, .debs, images
	tools/release dist/release

.PHONY: release-check
release-check: ## install the packages in clean Debians, and build them again; needs root
	tools/check-release dist/release

# Not in the list: for .ci/run. Half a minute.
.PHONY: release-short
release-short:
	tools/release --short dist/release
	tools/check-release --short dist/release

.PHONY: wheel
wheel: onnxruntime ## build the Python package into ./dist, and try it in an empty environment
	tools/check-wheel "$$(tools/wheel dist)"

.PHONY: python-client
python-client: build numpy
	bin/worker/bin/python3 python/tests/suite.py
	tools/check-types

.PHONY: clients
clients: build ## test the built binary with Triton's Python clients
	python3 test/clients/run.py

WHAT ?= list

.PHONY: measure
measure: ## run a long suite, WHAT=compare for instance; without WHAT list them
	@$(if $(filter list,$(WHAT)),$(call list,make measure WHAT=,measure.mk,20),$(MAKE) --no-print-directory $(WHAT))

include measure.mk

.PHONY: proto
proto: $(PROTOC_GEN_GO) $(PROTOC_GEN_GRPC) ## generate Go from proto/*.proto; needs protoc
	protoc -I proto \
		--plugin=protoc-gen-go=$(PROTOC_GEN_GO) --go_out=. --go_opt=module=$(MODULE) \
		--plugin=protoc-gen-go-grpc=$(PROTOC_GEN_GRPC) --go-grpc_out=. --go-grpc_opt=module=$(MODULE) \
		proto/*.proto

.PHONY: clean
clean: ## remove bin, dist, lib and models
	rm -rf bin dist lib models

$(LINT):
	$(call install,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,$(LINT_VERSION))

$(PROTOC_GEN_GO):
	$(call install,google.golang.org/protobuf/cmd/protoc-gen-go,$(PROTOC_GEN_GO_VERSION))

$(PROTOC_GEN_GRPC):
	$(call install,google.golang.org/grpc/cmd/protoc-gen-go-grpc,$(PROTOC_GEN_GRPC_VERSION))
