# Plain `make` prints what there is to make.

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

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: linter onnxruntime numpy sklearn ## download the modules, install the linter, and bring ONNX Runtime to ./lib, numpy and scikit-learn to ./bin
	go mod download

# Not in the list: parts of deps, for .ci/run.
.PHONY: linter onnxruntime numpy sklearn
linter: $(LINT)
onnxruntime:
	tools/get-onnxruntime lib
numpy:
	tools/get-numpy bin/worker
	NUMPY=1.26.4 tools/get-numpy bin/worker-older
sklearn:
	tools/get-numpy bin/sklearn scikit-learn==1.9.1 scipy==1.17.1 joblib==1.6.0 threadpoolctl==3.8.0 narwhals==2.28.0 cloudpickle==3.1.2

.PHONY: models
models: ## bring models of real size to ./models, some generated and some downloaded: 265 MB
	tools/get-models models

.PHONY: build
build: ## build bin/shoal
	go build -trimpath -o bin/shoal ./cmd/shoal

.PHONY: check
check: lint test race ## what a commit must pass; quick the second time, since Go remembers what it tested

.PHONY: test
test: ## run the tests
	go test ./...

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
lint: $(LINT) ## lint and check the formatting; installs the pinned linter first if it is missing
	$(LINT) run

.PHONY: e2e
e2e: build ## test the built binary from outside
	go test -tags e2e -count 1 ./test/e2e/...

.PHONY: picture
picture: build ## measure the seed device, and take the picture of the report that is in docs/benchmarking.md; needs chromium and a quiet machine
	go test -tags e2e -count 1 -run 'TestReportsOpenInABrowser/^report$$' ./test/e2e -picture ../../docs/pictures/bench-report.png

.PHONY: dist
dist: ## pack a server with all that it needs into ./dist, and serve an example from that
	tools/check-dist "$$(tools/dist dist)"

.PHONY: wheel
wheel: onnxruntime ## build the Python package with the server in it into ./dist, and get a first answer from it in an empty environment
	tools/check-wheel "$$(tools/wheel dist)"

.PHONY: python-client
python-client: build numpy ## test the Python package as it lies here, and check its types
	bin/worker/bin/python3 python/tests/suite.py
	tools/check-types

.PHONY: clients
clients: build ## test the built binary with Triton's own Python clients, which it installs to bin/clients
	python3 test/clients/run.py

.PHONY: python-beside-triton
python-beside-triton: build numpy ## ask Shoal and a real Triton the same of the same model.py files, and compare the answers
	tools/get-tritonserver
	python3 test/clients/beside.py

.PHONY: leaving
leaving: build onnxruntime numpy ## have 1 to 32 clients leave at random for 2 minutes each, over gRPC and HTTP, and once more with the race detector in the server: 35 minutes
	go build -race -trimpath -o bin/shoal-race ./cmd/shoal
	for binary in shoal shoal-race; do go test -tags e2e -count 1 -timeout 60m -v -run TestClientsThatLeave ./test/e2e -leaving 2m -binary $$binary || exit 1; done

PYTHON_FAULTS = WorkersInTrouble|NoWorkerOutlives|WhatAWorkerStarted|OneBadRequestOfEight|ModelsHaveTheirOwnNumpy

.PHONY: python-faults
python-faults: build numpy ## bring Python workers into trouble under 64 clients, 100 rounds of it; wants a quiet machine for 12 minutes, and goes on where it was stopped
	go test -tags e2e -count 1 -timeout 60m -v -run '$(PYTHON_FAULTS)' ./test/e2e -rounds 100 -strict

.PHONY: python-recorded
python-recorded: build numpy ## play all recorded batching cases with a Python model: 2 minutes
	go test -tags e2e -count 1 -timeout 10m -v -run TestRecordedCasesOnTheRunningServer ./test/e2e -strict

.PHONY: python-speed
python-speed: build numpy ## measure Python models here and in a real Triton; wants a quiet machine for 12 minutes, and goes on where it was stopped
	tools/get-perf-analyzer
	tools/get-tritonserver
	python3 test/clients/python_speed.py

.PHONY: peers
peers: build ## ask the real multi-model-server and TorchServe the same as bin/shoal, and say where they differ; needs Java and ab
	tools/get-mms
	tools/get-torchserve
	python3 test/peers/same.py

.PHONY: behaviours
behaviours: build ## bring Shoal, multi-model-server and TorchServe into trouble, and say what they make of it: 4 minutes; needs Java
	tools/get-mms
	tools/get-torchserve
	python3 test/peers/behave.py

.PHONY: peers-speed
peers-speed: build ## measure a handler here and in the real multi-model-server; needs Java and ab, and wants a quiet machine for 5 minutes
	tools/get-mms
	tools/get-models models mlp
	python3 test/peers/speed.py

MINUTES ?= 90

.PHONY: compare
compare: build onnxruntime numpy ## measure Shoal beside the bare engine and other servers, which it installs, and make bin/compare/compare.html; wants a quiet machine for MINUTES (90), and goes on where it was stopped
	tools/get-models models text_recognition ppocrv4_rec minilm wide_mlp mlp
	go build -o bin/compare/compare ./test/compare
	bin/compare/compare -minutes $(MINUTES) $(ARGS)

.PHONY: perf-analyzer
perf-analyzer: build ## run Triton's perf_analyzer, and print its table for the seed device; wants a quiet machine for 5 minutes
	tools/get-perf-analyzer
	python3 test/clients/perf_analyzer.py

.PHONY: bench
bench: ## run the benchmarks
	@packages=$$($(call tests,Benchmark) | cut -d ' ' -f 1 | sort -u); \
	test -z "$$packages" || go test -run '^$$' -bench . -benchmem $$packages

.PHONY: bench-bare
bench-bare: ## measure the bare engine with the models of `make models`, without the server
	go test -tags e2e -count 1 -timeout 30m -v -run TestTheBareEngine ./test/bare

.PHONY: bench-agreement
bench-agreement: build ## compare shoal bench with perf_analyzer, on Shoal and on a real Triton; wants a quiet machine for 25 minutes
	tools/get-perf-analyzer
	tools/get-tritonserver
	tools/get-models models text_recognition
	python3 test/clients/agreement.py

.PHONY: bench-stall
bench-stall: build ## hold what shoal bench says of a server that stalls for a second; wants a quiet machine for 8 minutes
	go test -tags e2e -count 1 -timeout 30m -v -run TestBenchSeesAStall ./test/e2e -strict

.PHONY: bench-replay
bench-replay: build ## record a minute, replay it twice, and hold it against the simulator; wants a quiet machine for 4 minutes
	go test -tags e2e -count 1 -timeout 30m -v -run TestBenchReplaysARecording ./test/e2e -strict

.PHONY: proofs
proofs: build ## prove with real models what docs/measured.md says of them; wants `make models` and a quiet machine for 10 minutes
	go test -tags e2e,proofs -count 1 -timeout 60m -v -run '^TestProof' -skip 'Untouched|TenModels|Forward|Limits' ./test/e2e -strict

.PHONY: forward
forward: build numpy ## hold 128 Python processes against the bare engine, and one array of 600 KB against the model; wants `make models` and a quiet machine for 10 minutes
	go test -tags e2e,proofs -count 1 -timeout 60m -v -run '^TestProofForward' ./test/e2e -strict

.PHONY: limits
limits: build ## hold the server against the bare engine and against a server that only echoes; wants `make models` and a quiet machine for 15 minutes, and goes on where it was stopped. ONLY=way is a part
	go test -tags e2e,proofs -count 1 -timeout 60m -v -run '^TestProofLimits$(if $(ONLY),/$(ONLY))' ./test/e2e -strict

.PHONY: slo
slo: build ## prove that overload costs no goodput, with the seed device and ResNet-50; wants `make models` and a quiet machine for 15 minutes
	go test -tags e2e,proofs -count 1 -timeout 60m -v -run '^TestProofOverload' ./test/e2e -strict

.PHONY: auto-seed
auto-seed: build ## hold the seed device untouched against each delay, with perf_analyzer; wants a quiet machine for 10 minutes, and goes on where it was stopped
	tools/get-perf-analyzer
	python3 test/clients/auto_seed.py

.PHONY: auto-real
auto-real: build ## hold real models untouched against the best configuration by hand; wants `make models` and a quiet machine for 35 minutes, and goes on where it was stopped
	go test -tags e2e,proofs -count 1 -timeout 90m -v -run '^TestProofUntouched' ./test/e2e -strict

.PHONY: ten-models
ten-models: build ## hold ten models on the same cores against the best counts by hand; wants `make models` and a quiet machine for 5 minutes
	go test -tags e2e,proofs -count 1 -timeout 30m -v -run '^TestProofTenModels' ./test/e2e -strict

.PHONY: figures
figures: build ## measure what docs/measured.md promises; wants a quiet machine for 20 minutes
	go test -run '^$$' -bench 'Submit|Gap' -benchmem ./internal/sched
	go test -run '^$$' -bench Automatic -benchtime 1000000x -benchmem ./internal/sched
	go test -run '^$$' -bench . -benchmem ./internal/batching ./internal/batching/automatic ./internal/simulate
	go test -tags e2e -count 1 -timeout 40m -v -run 'Seed|QueuePolicies|AToE|Timeouts|Idle|AloneNeverWaits|IsFollowed' ./test/e2e -strict

.PHONY: matrix matrix-heldout
matrix: ## hold the automatic policy against the best static settings in 272 cells; keeps results in bin/matrix, and goes on where it was stopped
	go run ./test/matrix
matrix-heldout: ## the same in 180 cells that no constant was chosen with
	go run ./test/matrix -heldout

.PHONY: sequences
sequences: ## play a million random event sequences against the batching core and its referee
	go test -count 1 -timeout 60m -run TestRandomSequences ./internal/batching -sequences 1000000

.PHONY: proto
proto: $(PROTOC_GEN_GO) $(PROTOC_GEN_GRPC) ## generate Go from proto/*.proto; needs protoc (Debian: protobuf-compiler)
	protoc -I proto \
		--plugin=protoc-gen-go=$(PROTOC_GEN_GO) --go_out=. --go_opt=module=$(MODULE) \
		--plugin=protoc-gen-go-grpc=$(PROTOC_GEN_GRPC) --go-grpc_out=. --go-grpc_opt=module=$(MODULE) \
		proto/*.proto

.PHONY: cover
cover: ## measure how much of the code the tests run
	@mkdir -p bin
	go test -coverpkg ./... -coverprofile bin/cover.all ./...
	@grep -v '\.pb\.go:' bin/cover.all > bin/cover.out
	go tool cover -func bin/cover.out | tail -n 1
	@echo "line by line: go tool cover -html bin/cover.out"

.PHONY: clean
clean: ## remove bin, dist, lib and models
	rm -rf bin dist lib models

$(LINT):
	$(call install,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,$(LINT_VERSION))

$(PROTOC_GEN_GO):
	$(call install,google.golang.org/protobuf/cmd/protoc-gen-go,$(PROTOC_GEN_GO_VERSION))

$(PROTOC_GEN_GRPC):
	$(call install,google.golang.org/grpc/cmd/protoc-gen-go-grpc,$(PROTOC_GEN_GRPC_VERSION))
