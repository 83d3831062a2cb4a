# Long suites: measurements, comparisons with other servers, and long tests. Run one with
# `make measure WHAT=name`. docs/lab/measuring.md says what each needs, and docs/lab/measurements.md has
# the last figures. "quiet" means that nothing else runs on the machine; "resumes" that a
# second run continues where the first was stopped.

.PHONY: picture
picture: build ## take the screenshot in docs/how-to/benchmark.md; needs chromium; quiet
	go test -tags e2e -count 1 -run 'TestReportsOpenInABrowser/^report$$' ./test/e2e -picture ../../docs/pictures/bench-report.png

.PHONY: python-beside-triton
python-beside-triton: build numpy ## compare answers of model.py files with a real Triton
	tools/get-tritonserver
	python3 test/clients/beside.py

.PHONY: states-beside-triton
states-beside-triton: build numpy ## compare which configurations load here and in a real Triton; 2 min
	tools/get-tritonserver
	python3 test/clients/states.py

.PHONY: ensembles
ensembles: build numpy ## compare what ensembles answer with the recorded answers of a real Triton; 2 min
	python3 test/clients/ensembles.py

.PHONY: replaced-members
replaced-members: build onnxruntime ## replace two members of an ensemble 50 times under load: no failed request, and versions that served together; 1 min
	go test -tags e2e -count 1 -timeout 30m -v -run TestMembersAreReplacedUnderAnEnsemble ./test/e2e -strict

.PHONY: deadlines
deadlines: build ## how long after its deadline a request of an ensemble ends whose second step runs; 1 min, quiet
	go test -tags e2e -count 1 -timeout 30m -v -run TestTheRestOfAGraphEndsAtTheDeadline ./test/e2e -strict

.PHONY: ocr
ocr: build onnxruntime numpy ## pictures that 16 clients read with the ensemble of examples/ocr-ensemble, and with its steps; 2 min, quiet
	go test -tags e2e -count 1 -timeout 30m -v -run TestTheOCREnsembleReadsDrawnPictures ./test/e2e -strict

.PHONY: preprocessing
preprocessing: build onnxruntime pillow ## the time of a photograph that an ensemble prepares in Python for ResNet-50, beside a client that prepares it; 4 min, quiet
	tools/get-models models resnet50
	go test -tags e2e -count 1 -timeout 30m -v -run TestAnEnsembleCostsWhatItsClientWouldPay ./test/e2e -strict

.PHONY: recorded-sequences
recorded-sequences: build numpy ## compare what models with sequences answer with the recorded answers of a real Triton; 4 min
	python3 test/clients/sequences.py

.PHONY: recorded-cache
recorded-cache: build numpy ## compare what models with a response cache answer with the recorded answers of a real Triton; 2 min
	python3 test/clients/cache.py

.PHONY: cache
cache: build ## a million requests of eight threads to a model with a response cache: no wrong answer, and the time of a hit; 5 min, quiet
	go test -tags e2e -count 1 -timeout 60m -v -run TestCachedAnswersAreRight ./test/e2e -strict

.PHONY: voices
voices: build onnxruntime ## 10,000 frames of 32 streams to the Silero voice detector: the same bits as alone, and batches above 8; 3 min
	tools/get-models models silero_vad
	go test -tags e2e -count 1 -timeout 30m -v -run 'TestStreamsGetTheSameBits|TestAStreamThatFallsSilent' ./test/e2e -strict

.PHONY: example-clients
example-clients: build onnxruntime numpy ## Triton's example clients; CLIENTS=src/python/examples of a clone of its client repository; 2 min
	python3 test/clients/originals.py $(or $(CLIENTS),$(error set CLIENTS to src/python/examples of a clone of github.com/triton-inference-server/client))

.PHONY: leaving
leaving: build onnxruntime numpy ## clients that cancel at random, with and without the race detector; 35 min
	go build -race -trimpath -o bin/shoal-race ./cmd/shoal
	for binary in shoal shoal-race; do go test -tags e2e -count 1 -timeout 60m -v -run TestClientsThatLeave ./test/e2e -leaving 2m -binary $$binary || exit 1; done

.PHONY: demand
demand: build onnxruntime ## 1,000 models of 8 MiB in a real S3 server on memory for 100, and 60 text recognisers on memory for 12; 20 min, quiet
	tools/get-versitygw
	tools/get-models models ppocrv4_rec
	go test -tags e2e -count 1 -timeout 30m -v -run 'TestMoreModelsThanMemory$$' ./test/e2e -strict -demand-bucket -demand 5m -demand-models 1000 -demand-fit 100 -demand-rate 200; first=$$?; \
	go test -tags e2e -count 1 -timeout 30m -v -run 'TestMoreModelsThanMemory$$' ./test/e2e -strict -demand-bucket -demand 5m -demand-real ppocrv4_rec -demand-models 60 -demand-fit 12 -demand-rate 8 && exit $$first

.PHONY: thrash
thrash: build onnxruntime ## 200 models on memory for 20: as many good answers as with the 20 alone, but for a tenth; 3 min, quiet
	go test -tags e2e -count 1 -timeout 20m -v -run TestThrashingModels ./test/e2e -thrash 1m -strict

.PHONY: bucket
bucket: build ## models in a real S3 server that is slow, breaks off, fails and changes, and in stores that answer as Google's and Azure's; 2 min
	tools/get-versitygw
	tools/get-cloud-stores
	go test -tags e2e -count 1 -timeout 10m -v -run 'TestABucketWithFaults|TestModelsOfOtherClouds' ./test/e2e -strict

.PHONY: weights
weights: onnxruntime ## memory of MiniLM and ResNet-50 with and without a session for exclusive batches; 1 min
	tools/get-models models minilm resnet50
	go test -count 1 -v -run '^TestMemoryOfRealModelsWithAnExclusiveSession$$' ./internal/engine/onnx -weights $(CURDIR)/models

.PHONY: misbehaving
misbehaving: build onnxruntime numpy ## clients that misbehave at random, with and without the race detector; 20 min
	go build -race -trimpath -o bin/shoal-race ./cmd/shoal
	for binary in shoal shoal-race; do go test -tags e2e -count 1 -timeout 60m -v -run TestClientsThatMisbehave ./test/e2e -misbehaving 10m -binary $$binary || exit 1; done

PYTHON_FAULTS = NoWorkerOutlives|WhatAWorkerStarted|OneBadRequestOfEight|ModelsHaveTheirOwnNumpy

.PHONY: python-faults
python-faults: build numpy ## kill and stop Python workers under 64 clients, 100 rounds; 12 min, quiet, resumes
	go test -tags e2e -count 1 -timeout 60m -v -run '$(PYTHON_FAULTS)' ./test/e2e -strict
	go test -tags e2e -count 1 -timeout 60m -v -run WorkersInTrouble ./test/proofs -rounds 100 -strict

.PHONY: python-recorded
python-recorded: build numpy ## replay all recorded batching cases with a Python model; 2 min
	go test -tags e2e -count 1 -timeout 10m -v -run TestRecordedCasesOnTheRunningServer ./test/e2e -strict

.PHONY: python-speed
python-speed: build numpy ## Python models here and in a real Triton; 14 min, quiet, resumes
	tools/get-perf-analyzer
	tools/get-tritonserver
	python3 test/clients/python_speed.py

.PHONY: peers
peers: build ## compare answers with the real multi-model-server and TorchServe; needs Java and ab
	tools/get-mms
	tools/get-torchserve
	python3 test/peers/same.py

.PHONY: behaviours
behaviours: build ## clients that leave, killed workers and overload in Shoal, MMS and TorchServe; 4 min, needs Java
	tools/get-mms
	tools/get-torchserve
	python3 test/peers/behave.py

.PHONY: peers-speed
peers-speed: build ## a handler here and in the real multi-model-server; 5 min, quiet, needs Java and ab
	tools/get-mms
	tools/get-models models mlp
	python3 test/peers/speed.py

EXAMPLES ?= 1000

.PHONY: api
api: build onnxruntime ## the HTTP API against docs/reference/openapi.yaml, EXAMPLES=1000 for each operation; 10 min
	tools/get-schemathesis
	python3 test/api/run.py --examples $(EXAMPLES)

MINUTES ?= 90

.PHONY: cost-gate
cost-gate: build numpy ## the gate on the cost of a request: 20 runs of this server, 10 of a slower one; 20 min
	test/cost/gate 20 10

.PHONY: traces
traces: build numpy onnxruntime ## send traces to OpenTelemetry's own collector, and what tracing costs; 5 min
	cd test/collector && go build -o ../../bin/collector .
	go test -tags e2e -count 1 -timeout 30m -v -run 'Trace|QueueAndComputeAddUp' ./test/e2e -strict -collector $(CURDIR)/bin/collector
	go test -tags e2e -count 1 -timeout 30m -v -run TestTracingCostsLittle ./test/cost -strict

.PHONY: compare
compare: build onnxruntime numpy ## Shoal, the bare engine and seven servers; MINUTES=90, quiet, resumes
	tools/get-models models text_recognition ppocrv4_rec minilm wide_mlp mlp
	go build -o bin/compare/compare ./test/compare
	bin/compare/compare -minutes $(MINUTES) $(ARGS)

.PHONY: perf-analyzer
perf-analyzer: build ## Triton's perf_analyzer on the seed device; 5 min, quiet
	tools/get-perf-analyzer
	python3 test/clients/perf_analyzer.py

.PHONY: bench
bench: ## all Go benchmarks
	@packages=$$($(call tests,Benchmark) | cut -d ' ' -f 1 | sort -u); \
	test -z "$$packages" || go test -run '^$$' -bench . -benchmem $$packages

.PHONY: bench-bare
bench-bare: ## the bare engine, without the server
	go test -tags e2e -count 1 -timeout 30m -v -run TestTheBareEngine ./test/bare

.PHONY: bench-agreement
bench-agreement: build ## shoal bench and perf_analyzer, on Shoal and on a real Triton; 25 min, quiet, resumes
	tools/get-perf-analyzer
	tools/get-tritonserver
	tools/get-models models text_recognition
	python3 test/clients/agreement.py

.PHONY: bench-stall
bench-stall: build ## what shoal bench reports of a server that stalls; 8 min, quiet, resumes
	go test -tags e2e -count 1 -timeout 30m -v -run TestBenchSeesAStall ./test/proofs -strict

.PHONY: bench-replay
bench-replay: build ## record a minute, replay it 14 times, and compare with the simulator; 16 min, quiet
	go test -tags e2e -count 1 -timeout 30m -v -run TestBenchReplaysARecording ./test/proofs -strict

.PHONY: proofs
proofs: build ## the figures of real models in docs/lab/measurements.md; 10 min, quiet, resumes
	go test -tags e2e,proofs -count 1 -timeout 60m -v -run '^TestProof' -skip 'Untouched|TenModels|Forward|Limits|OverloadO[nf]A|LoadInSteps' ./test/proofs -strict

.PHONY: forward
forward: build numpy ## 128 Python processes, and one array of 600 KB; 10 min, quiet, resumes
	go test -tags e2e,proofs -count 1 -timeout 60m -v -run '^TestProofForward' ./test/proofs -strict

.PHONY: limits
limits: build ## the server beside the bare engine and an echo; ONLY=way is a part; 15 min, quiet, resumes
	go test -tags e2e,proofs -count 1 -timeout 60m -v -run '^TestProofLimits$(if $(ONLY),/$(ONLY))' ./test/proofs -strict

.PHONY: slo
slo: build ## goodput under overload, seed device and ResNet-50; 20 min, quiet
	go test -tags e2e,proofs -count 1 -timeout 60m -v -run '^TestProofOverloadCosts' ./test/proofs -strict

.PHONY: auto-seed
auto-seed: build ## the seed device untouched beside each delay, with perf_analyzer; 10 min, quiet, resumes
	tools/get-perf-analyzer
	python3 test/clients/auto_seed.py

.PHONY: auto-real
auto-real: build ## real models untouched beside the best explicit settings; 35 min, quiet, resumes
	go test -tags e2e,proofs -count 1 -timeout 90m -v -run '^TestProofUntouched' ./test/proofs -strict

.PHONY: ten-models
ten-models: build ## ten models on the same cores; 5 min, quiet, resumes
	go test -tags e2e,proofs -count 1 -timeout 30m -v -run '^TestProofTenModels' ./test/proofs -strict

.PHONY: figures
figures: build ## scheduler, policy and seed device in docs/lab/measurements.md; 20 min, quiet, resumes
	go test -run '^$$' -bench 'Submit|Gap' -benchmem ./internal/sched
	go test -run '^$$' -bench Automatic -benchtime 1000000x -benchmem ./internal/sched
	go test -run '^$$' -bench . -benchmem ./internal/batching ./internal/batching/automatic ./internal/simulate
	go test -tags e2e -count 1 -timeout 40m -v -run 'Seed|QueuePolicies|AToE|Timeouts|Idle|AloneNeverWaits|IsFollowed' ./test/proofs -strict

.PHONY: matrix matrix-heldout
matrix: ## compare the automatic policy with the best static settings, 272 cells; 15 min, resumes
	go run ./test/matrix/cmd
matrix-heldout: ## the same in 180 cells not used to choose constants; 10 min, resumes
	go run ./test/matrix/cmd -heldout

.PHONY: lengths
lengths: build ## 10,000 requests of mixed lengths get their own rows, with padding and without; 2 min
	go test -tags e2e -count 1 -v -run '^(TestRequestsOfDifferentLengths|TestModelsWithAMask)' ./test/e2e -mixed 10000

.PHONY: lengths-minilm
lengths-minilm: build ## MiniLM with 64 clients of different lengths, padding allowed and forbidden in turn; 8 min
	go test -tags e2e,proofs -count 1 -timeout 30m -v -run '^TestProofPadding' ./test/proofs -strict

.PHONY: hunt
hunt: ## search 100,000 random runs for one in which the automatic policy does not recover; 12 min
	go run ./test/hunt/cmd $(ARGS)

.PHONY: recovery
recovery: build onnxruntime ## busy loops, SIGSTOP pulses and disturbed calibrations in 20 random rounds: as fast as before 200 batches later; 25 min, quiet, resumes
	tools/get-models models text_recognition wide_mlp
	go test -tags e2e,proofs -count 1 -timeout 90m -v -run '^TestProofTheServerRecovers$$' ./test/proofs -strict

.PHONY: retests
retests: build ## what retests cost while nothing disturbs: ten minutes of the seed device with and without them; 21 min, quiet, resumes
	go test -tags e2e,proofs -count 1 -timeout 60m -v -run '^TestProofRetestsCostLittle$$' ./test/proofs -strict

.PHONY: sequences
sequences: ## a million random event sequences against the core and its referee
	go test -count 1 -timeout 60m -run TestRandomSequences ./internal/batching -sequences 1000000

.PHONY: slots
slots: ## a million random event sequences against the slots of models with sequences, and their referee; 3 min
	go test -count 1 -timeout 120m -v -run TestNoSlotIsGivenTwice ./internal/batching -sequences 1000000

.PHONY: cell
cell: ## a cell of 1,000 nodes and 10,000 models with four balancers and ten seeds; ARGS='-only "load 2.0"'
	go test -count 1 -timeout 600m -v -run TestTable ./internal/simulate/cell -nodes 1000 -warm 10s -length 20s -seeds 1,2,3,4,5,101,102,103,104,105 -strict $(ARGS)

.PHONY: cell-hour
cell-hour: ## an hour of 50 simulated nodes and 500 models: a day curve, and reports that stop; 6 min
	go test -count 1 -timeout 60m -v -run 'TestCopiesFollowADayCurve|TestWithoutReportsNothingMoves' ./internal/simulate/cell -hour

.PHONY: cell-real
cell-real: build ## three real nodes behind a real Envoy beside the simulated cell; 3 min, quiet
	tools/get-envoy
	go test -tags e2e,proofs -count 1 -timeout 30m -v -run '^TestProofCell$$' ./test/proofs -strict

.PHONY: cell-faults
cell-faults: build ## four nodes, two Envoys, a cell and a follower are killed, stopped and restarted under 70 % load; 18 min, quiet
	tools/get-envoy
	tools/get-versitygw
	go test -tags e2e -count 1 -timeout 40m -v -run '^TestACellUnderFaults$$' ./test/e2e -strict | grep -E '^(---|ok|FAIL|panic)|figures:|failed'

.PHONY: rollouts
rollouts: build numpy ## versions that fail, are slow or have another shape get one percent of the requests, and none after the decision; 1 min, quiet
	tools/get-envoy
	go test -tags e2e -count 1 -timeout 10m -v -run '^TestABadVersionOfACellIsRolledBack$$' ./test/e2e -strict | grep -E '^(---|ok|FAIL|panic)|figures:|_test.go'

.PHONY: active-copies
active-copies: build ## device time and p50 with few active copies of each model, beside round robin and least request over all; 12 min, quiet
	tools/get-envoy
	tools/get-versitygw
	go test -tags e2e,proofs -count 1 -timeout 30m -v -run '^TestProofActiveCopies$$' ./test/proofs -strict

.PHONY: envoy-cost
envoy-cost: build ## what Envoy adds to a request, and what two nodes run beside one; 7 min, quiet
	tools/get-envoy
	go test -tags e2e -count 1 -timeout 30m -v -run '^(TestWhatEnvoyAdds|TestTwoNodesRunTwiceAsMuchAsOne)$$' ./test/e2e -strict | grep -v 'cell: '

.PHONY: cell-size
cell-size: build ## a cell with 1,000 pretended nodes and 10,000 models: 50 pretended Envoys, and a real one while models move; 5 min, quiet
	tools/get-envoy
	go test -tags e2e,proofs -count 1 -timeout 20m -v -run '^TestProof(ACellOfAThousandNodes|EnvoyWhileModelsMove)$$' ./test/proofs -strict

.PHONY: cells
cells: ## a million random cells against the rules of placement; 9 min
	go test -count 1 -timeout 180m -v -run TestRandomCells ./internal/placement -cells 1000000

.PHONY: mutations
mutations: onnxruntime numpy ## defects that the tests must notice, one at a time; ARGS='-only ^S'; 40 min, resumes
	go run ./test/mutations $(ARGS)

.PHONY: cover
cover: ## test coverage
	@mkdir -p bin
	go test -coverpkg ./... -coverprofile bin/cover.all ./...
	@grep -v '\.pb\.go:' bin/cover.all > bin/cover.out
	go tool cover -func bin/cover.out | tail -n 1
	@echo "line by line: go tool cover -html bin/cover.out"

.PHONY: attacks
attacks: build ## eight ways to take memory, on a server with a budget of 256 MiB, seven times; 25 min, quiet, resumes
	go test -tags e2e -count 1 -timeout 60m -v -run TestRequestsStayWithinTheMemoryBudget ./test/e2e -strict

.PHONY: overload
overload: build onnxruntime ## 2, 4 and 10 times what a slow device can do, and twice what a text recogniser can, 7 times 10 s each; 8 min, quiet
	tools/get-models models text_recognition
	go test -tags e2e,proofs -count 1 -timeout 20m -v -run '^TestProofOverloadO[nf]A' ./test/proofs -strict

.PHONY: steps
steps: build ## a tenth of what a slow device can do, one and a half times that, and a tenth again: how soon the latency is back; 6 min, quiet
	go test -tags e2e,proofs -count 1 -timeout 30m -v -run '^TestProofALoadInSteps$$' ./test/proofs -strict

HOURS ?= 1

.PHONY: soak
soak: build onnxruntime numpy ## a load of 70 % for HOURS=1 while clients misbehave, workers die and models come and go; in rounds of an hour; resumes
	tools/soak $(HOURS)

MILLIONS ?= 100

.PHONY: fuzz-inputs
fuzz-inputs: ## fuzz all targets in turn until MILLIONS=100 of inputs have run; hours, resumes
	tools/fuzz-inputs $(MILLIONS)

.PHONY: faults
faults: build onnxruntime numpy ## killed and stopped workers, full disks, few descriptors, slow and cut networks; 12 min
	tools/get-versitygw
	go test -tags e2e -count 1 -timeout 30m -v -run '$(FAULTS)' ./test/e2e

# The tests of test/e2e that inject a fault from outside of the server.
FAULTS = FullDisk|LogThatCannot|LogNobodyReads|Vanishes|KilledWorker|NoWorkerOutlives|WorkerStarted|WorkerThatCannot|SilentClients|ThatLeave|Misbehave|Panic|MemoryBudget|EndlessRequest|BurstIsRefused|OneBadRequest|IsWrongWithAModel|WrongRequests|NetworksThatAre

.PHONY: identity
identity: build ## tokens of a real OpenID Connect issuer, and a real Envoy that names callers and limits tenants; needs node; 1 min
	tools/get-envoy
	tools/get-oidc-provider
	go test -tags e2e -count 1 -timeout 10m -v -run 'TestTokensOfARealIssuer|TestAProxyNamesTheCaller|TestEnvoyLimitsTenants' ./test/e2e

.PHONY: node
node: build ## the page of a server with 1,000 models, and what readers cost that wait for changes; 4 min, quiet
	go test -tags e2e,proofs -count 1 -timeout 30m -v -run '^TestProofTheNodesPage$$' ./test/proofs -strict

.PHONY: dashboard
dashboard: build numpy web ## the dashboard in a browser: figures, timeline, 1,000 models, axe-core, memory, CPU of readers; needs chromium and node; 18 min, quiet
	go test -tags e2e -count 1 -timeout 30m -v -run 'TestTheDashboard|TestTheTimeline|TestADemo' ./test/e2e -strict
	go test -tags e2e,proofs -count 1 -timeout 20m -v -run '^TestProofReadersOfTheDashboard' ./test/proofs -strict

.PHONY: site
site: ## every page of the documentation in Chromium, on a laptop and on a phone, from disk; 2 min
	tools/docs/build dist/site
	go test -tags e2e -count 1 -timeout 10m -v -run '^TestPagesOfTheSite$$' ./test/e2e -site $(CURDIR)/dist/site

.PHONY: dashboard-pictures
dashboard-pictures: build ## take the pictures of docs/how-to/use-the-dashboard.md; needs chromium; 4 min, quiet
	go test -tags e2e -count 1 -timeout 20m -v -run 'TestPicturesOfTheDashboard' ./test/e2e -dashboard-pictures ../../docs/pictures

.PHONY: access-cost
access-cost: build ## CPU of a request with TLS, with a verified token and a tenant, and with all of it, times plain; 6 min, quiet
	go test -tags e2e,proofs -count 1 -timeout 30m -v -run '^TestProofAccessCosts$$' ./test/proofs -strict

.PHONY: tenants
tenants: build ## fair shares of tenants: a million random sequences before the referee, and one tenant that sends ten times its share, simulated and real; 15 min
	go test ./internal/batching -count 1 -timeout 2h -run TestRandomSequences -sequences 1000000
	go test ./internal/simulate -count 1 -timeout 1h -v -run TestATenantThatSendsTenTimesItsShare -tenants 10m
	go test -tags e2e,proofs -count 1 -timeout 30m -v -run '^TestProofATenantThatSendsTenTimesItsShare$$' ./test/proofs -strict
