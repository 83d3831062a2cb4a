package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// listeners takes from a log who listens where.
type listeners struct {
	slog.Handler

	all chan [2]string // has room for one of each protocol
}

func (l listeners) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "listening" {
		var found []string
		r.Attrs(func(a slog.Attr) bool {
			found = append(found, a.Value.String())
			return true
		})
		l.all <- [2]string(found)
	}
	return nil
}

// running serves the example with three faces, or as many as args leave, and returns
// their addresses. It logs to log, too.
func running(t *testing.T, faces int, log slog.Handler, args ...string) map[string]string {
	t.Helper()
	return serving(t, faces, log, append(args, "../../examples/seed-device")...)
}

// serving is running, with the models that args name.
func serving(t *testing.T, faces int, log slog.Handler, args ...string) map[string]string {
	t.Helper()
	opts, _, err := serveFlags(nil, append(args, "--http-port=0", "--grpc-port=0", "--metrics-port=0")...)
	if err != nil {
		t.Fatal(err)
	}
	settings, err := opts.store.settings()
	if err != nil {
		t.Fatal(err)
	}
	l := listeners{slog.NewTextHandler(io.Discard, nil), make(chan [2]string, 6)}
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	var served error
	done.Go(func() {
		served = serve(ctx, opts, settings, nil, &logOutput{Logger: slog.New(slog.NewMultiHandler(l, log))})
	})
	t.Cleanup(func() {
		stop()
		done.Wait()
		if served != nil {
			t.Error(served)
		}
		close(l.all)
		for one := range l.all {
			t.Errorf("somebody else listens: %v", one)
		}
	})
	addresses := map[string]string{}
	for range faces {
		one := <-l.all
		addresses[one[0]] = one[1]
	}
	return addresses
}

func getStatus(t *testing.T, url string) int {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	return resp.StatusCode
}

func TestAServerOnAFullDiskAnswers(t *testing.T) {
	opts := allLevels
	opts.file = "/dev/full"
	if _, err := os.Stat(opts.file); err != nil {
		t.Skip("no /dev/full here")
	}
	log, err := openLog(opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	at := running(t, 3, log.Handler())
	if status := getStatus(t, "http://"+at["http"]+"/v2/health/live"); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
}

func TestAFaceThatIsNotAllowedDoesNotListen(t *testing.T) {
	at := running(t, 1, slog.DiscardHandler, "--allow-grpc=false", "--allow-metrics=false", "--http-address=127.0.0.2")
	if !strings.HasPrefix(at["http"], "127.0.0.2:") {
		t.Errorf("listens at %v", at)
	}
	if status := getStatus(t, "http://"+at["http"]+"/v2/health/live"); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
}

func TestPrometheusIsAnsweredWhereHTTPIs(t *testing.T) {
	at := running(t, 3, slog.DiscardHandler, "--http-address=127.0.0.2")
	if !strings.HasPrefix(at["metrics"], "127.0.0.2:") {
		t.Errorf("listens at %v", at)
	}
	if status := getStatus(t, "http://"+at["metrics"]+"/metrics"); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
}

// Load balancers watch for as long as there is something to see.
func TestWhoWatchesDoesNotKeepTheServerFromStopping(t *testing.T) {
	var watching sync.WaitGroup
	var stopped time.Time
	t.Cleanup(func() {
		watching.Wait()
		if took := time.Since(stopped); took > 30*time.Second {
			t.Errorf("the server took %v to stop", took)
		}
	})
	at := running(t, 3, slog.DiscardHandler, "--exit-timeout-secs=60")
	t.Cleanup(func() { stopped = time.Now() })
	conn, err := grpc.NewClient(at["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	watching.Go(func() {
		for err == nil {
			_, err = watch.Recv()
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("the watch ended with %v", err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestSettingsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, `no models given; name a model file or a directory of models, as in "shoal serve model.onnx" or "shoal serve models"`},
		{[]string{"models", "--http-port=70000"}, "--http-port: 70000 is not valid: expected 0 to 65535"},
		{[]string{"models", "--model-load-thread-count=-1"}, "--model-load-thread-count: -1 is not valid: expected 1 to 2147483647"},
		{[]string{"models", "--load-model=a"}, "--load-model needs --model-control-mode=explicit; in mode none all models are loaded"},
		{[]string{"models", "--load-model=a", "--model-control-mode=explicit"}, ""},
		{[]string{"models", "--tls-cert=c"}, "--tls-cert and --tls-key need each other: set both, or none"},
		{[]string{"models", "--tls-client-ca=c"}, "--tls-client-ca needs --tls-cert and --tls-key"},
		{[]string{"models", "--grpc-use-ssl=true"}, "--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key"},
		{[]string{"models", "--grpc-server-cert=c", "--grpc-server-key=k"}, "--grpc-server-cert and --grpc-root-cert have no effect without --grpc-use-ssl=true or --grpc-use-ssl-mutual=true"},
		{[]string{"models", "--grpc-use-ssl-mutual=true", "--grpc-server-cert=c", "--grpc-server-key=k"}, "--grpc-use-ssl-mutual needs --grpc-root-cert"},
		{[]string{"models", "--models=m.mar"}, "--models needs --model-store or --mms-config"},
		{[]string{"models", "--model-server=torchserve"}, "--model-server needs --model-store or --mms-config"},
		{[]string{"models", "--model-server=torchserve", "--models=m.mar", "--model-store=s"}, ""},
		{[]string{"models", "--reload", "--model-control-mode=explicit"}, "--reload cannot be combined with --model-control-mode=explicit, in which clients decide what is loaded"},
	} {
		opts, _, err := serveFlags(nil, tt.args...)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmp.Or(opts.checkModels(), opts.check()); err == nil && tt.want != "" || err != nil && err.Error() != tt.want {
			t.Errorf("%q: got %v, want %s", tt.args, err, tt.want)
		}
	}
}

func TestAServerMayStartWithoutSomeModels(t *testing.T) {
	at := running(t, 3, slog.DiscardHandler, "--exit-on-error=false", "no/such/folder")
	if status := getStatus(t, "http://"+at["http"]+"/v2/health/live"); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
}

func TestAModelThatCannotBeLoadedIsAnsweredWithHowToServeTheOthers(t *testing.T) {
	const hint = "; to serve the other models without it, add --exit-on-error=false"
	broken := directory(t, map[string]string{"plan/config.pbtxt": `platform: "tensorrt_plan"`, "plan/1/model.plan": "x"})
	for others, want := range map[string]bool{"../../examples/seed-device": true, "": false} {
		args := []string{"serve", broken, "--http-port=0", "--grpc-port=0", "--metrics-port=0", "--calibration-dir="}
		if others != "" {
			args = append(args, others)
		}
		text, status := shoal(t, args...)
		if status != exitFailed || !strings.Contains(text, `"tensorrt_plan" is not supported`) || strings.Contains(text, hint) != want {
			t.Errorf("with %q: status %d, %s", others, status, text)
		}
	}
}

func TestOtherMachinesAreLetInOnlyByName(t *testing.T) {
	const expected = ` can be reached from other machines; use 127.0.0.1, or set --tls-cert and --tls-key, and --api-keys, --access or --tls-client-ca, or add --insecure-bind to allow clients that are not authenticated`
	const encrypted = "--tls-cert=c --tls-key=k "
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, ""},
		{[]string{"--address=localhost", "--http-address=127.8.9.10", "--grpc-address=::1"}, ""},
		{[]string{"--address=0.0.0.0"}, `address: "0.0.0.0"` + expected},
		{[]string{"--http-address=::", "--metrics-address=10.0.0.1"}, `http-address: "::"` + expected + "\n" + `metrics-address: "10.0.0.1"` + expected},
		{[]string{"--address="}, `address: ""` + expected},
		{[]string{"--http-address=", "--grpc-address="}, ""},
		{[]string{"--admin-address=127.0.0.1:8003"}, ""},
		{[]string{"--admin-address=[::1]:8003"}, ""},
		{[]string{"--admin-address=:8003"}, `admin-address: ":8003"` + expected},
		{[]string{"--admin-address=10.0.0.1:8003"}, `admin-address: "10.0.0.1:8003"` + expected},
		{[]string{"--grpc-address=example.com"}, `grpc-address: "example.com"` + expected},
		{[]string{"--address=0.0.0.0", "--metrics-address=::", "--insecure-bind"}, ""},
		{[]string{"--address=0.0.0.0", "--insecure-bind=false"}, `address: "0.0.0.0"` + expected},
		{strings.Fields(encrypted + "--address=0.0.0.0"), `address: "0.0.0.0"` + expected},
		{strings.Fields("--api-keys=f --address=0.0.0.0"), `address: "0.0.0.0"` + expected},
		{strings.Fields(encrypted + "--api-keys=f --address=0.0.0.0 --metrics-address=::"), ""},
		{strings.Fields(encrypted + "--access=f --http-address=0.0.0.0"), ""},
		{strings.Fields(encrypted + "--tls-client-ca=f --address=0.0.0.0"), ""},
		// The gRPC port has files of its own, and the HTTP port has none.
		{strings.Fields("--grpc-use-ssl-mutual=true --grpc-server-cert=c --grpc-server-key=k --grpc-root-cert=r --grpc-address=0.0.0.0"), ""},
		{strings.Fields("--grpc-use-ssl-mutual=true --grpc-server-cert=c --grpc-server-key=k --grpc-root-cert=r --address=0.0.0.0"), `address: "0.0.0.0"` + expected},
		{strings.Fields(encrypted + "--tls-client-ca=f --grpc-use-ssl=true --grpc-server-cert=c --grpc-server-key=k --grpc-address=0.0.0.0"), `grpc-address: "0.0.0.0"` + expected},
	} {
		opts, s, err := serveFlags(nil, append(tt.args, "models")...)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkAddresses(s.settings, &opts.access); err == nil && tt.want != "" || err != nil && err.Error() != tt.want {
			t.Errorf("%q: got %v, want %s", tt.args, err, tt.want)
		}
	}
}

func TestOneWarningNamesTheAddressesThatOtherMachinesReach(t *testing.T) {
	for args, want := range map[string]string{
		"--insecure-bind": "",
		"--insecure-bind --address=0.0.0.0 --metrics-address=::":       "addresses=0.0.0.0,::",
		"--insecure-bind --address=0.0.0.0 --api-keys=f":               "connections are not encrypted",
		"--address=0.0.0.0 --api-keys=f --tls-cert=c --tls-key=k":      "",
		"--insecure-bind --address=0.0.0.0 --tls-cert=c --tls-key=k":   "clients are not authenticated",
		"--address=0.0.0.0 --tls-client-ca=f --tls-cert=c --tls-key=k": "",
	} {
		opts, s, err := serveFlags(nil, append(strings.Fields(args), "models")...)
		if err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		warnOfClients(s.settings, &opts.access, slog.New(slog.NewTextHandler(&log, nil)))
		if got := log.String(); !strings.Contains(got, want) || strings.Count(got, "level=WARN") != min(1, len(want)) {
			t.Errorf("%s: the log is %q, want one warning with %q", args, got, want)
		}
	}
}

func TestWhoAsksForNonsenseGetsAnotherExitStatus(t *testing.T) {
	for want, err := range map[int]error{1: io.EOF, 2: fmt.Errorf("serve: %w", misuse{io.EOF})} {
		if got := exitStatus(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

// A model may compute although its clients have left, so that no request is in flight.
func TestAnEngineThatDoesNotStopIsNotWaitedForForEver(t *testing.T) {
	for _, tt := range []struct {
		ports error
		drain time.Duration // how long the ports take
		want  time.Duration
	}{
		{nil, time.Second, 30 * time.Second},
		{nil, 29 * time.Second, 29*time.Second + closeTimeout},
		{io.EOF, 30 * time.Second, 30*time.Second + closeTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			stop := func(time.Duration) error { time.Sleep(tt.drain); return tt.ports }
			began := time.Now()
			hang := make(chan struct{})
			err := end(30*time.Second, stop, func() error { <-hang; return nil })
			if took := time.Since(began); err == nil || !errors.Is(err, tt.ports) && tt.ports != nil || took != tt.want {
				t.Errorf("%v after %v, want %v", err, took, tt.want)
			}
			close(hang)
			if err := end(30*time.Second, stop, func() error { return io.ErrNoProgress }); !errors.Is(err, io.ErrNoProgress) {
				t.Error(err)
			}
		})
	}
}

func TestAServerHasRoomForGarbage(t *testing.T) {
	t.Setenv("GOGC", "")
	held := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := held()
	at := running(t, 3, slog.DiscardHandler)
	for getStatus(t, "http://"+at["http"]+"/v2/health/ready") != http.StatusOK {
		time.Sleep(time.Millisecond) // the test's own timeout ends it
	}
	if during := held(); during < before+(15<<20) {
		t.Errorf("%d bytes are held, and %d before", during, before)
	}
}

// TestMemoryIsFreedAfterTheLastRefusal: what the last requests of a burst leave is freed too, and
// a burst does not keep the collector busy.
func TestMemoryIsFreedAfterTheLastRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		freed := make(chan time.Duration, 10)
		refused := atMostEverySecond(func() { freed <- time.Since(began) })
		for range 15 { // until 1.4 s
			refused()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		refused()
		time.Sleep(10 * time.Second)
		var got []time.Duration
		for len(freed) > 0 {
			got = append(got, <-freed)
		}
		if want := []time.Duration{0, time.Second, 2 * time.Second, 11500 * time.Millisecond}; !slices.Equal(got, want) {
			t.Errorf("freed after %v, want %v", got, want)
		}
	})
}

// Flags are checked earlier. An error that is found only here must not end in a panic.
func TestAServerThatCannotBeMadeIsAnError(t *testing.T) {
	for _, flag := range []string{"--cache-config=remote,size=1", "--backend-config=python"} {
		opts, _, err := serveFlags(nil, flag, "../../examples/seed-device")
		if err != nil {
			t.Fatal(err)
		}
		err = serve(t.Context(), opts, nil, nil, &logOutput{Logger: slog.New(slog.DiscardHandler)})
		if name, _, _ := strings.Cut(flag, "="); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
