//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"
)

// A browser is a headless Chromium that speaks the DevTools protocol over two pipes: one
// JSON message at a time, each ended by a zero byte.
// https://chromedevtools.github.io/devtools-protocol/ lists its commands and events.
type browser struct {
	in io.Writer

	mu      sync.Mutex // guards the following
	next    int        // number of commands sent
	waiting map[int]chan message
	events  []message
	arrived chan struct{} // closed, and replaced, when an event arrives or the browser ends
	err     error         // why there are no more messages
}

// A message is a command, its response, or an event.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// openBrowser starts the Chromium that the variable CHROMIUM names, or else the one in the
// PATH; if neither exists, the test is skipped. The browser ends with the test.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	path := os.Getenv("CHROMIUM")
	if path == "" {
		var err error
		if path, err = exec.LookPath("chromium"); errors.Is(err, exec.ErrNotFound) {
			t.Skip("chromium is not in the PATH, and CHROMIUM is not set; Debian: apt-get install chromium")
		} else if err != nil {
			t.Fatal(err)
		}
	}
	args := []string{
		"--headless", "--remote-debugging-pipe", "--user-data-dir=" + t.TempDir(), "--no-first-run", "--disable-gpu",
		"--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars", "--mute-audio",
	}
	if os.Geteuid() == 0 {
		args = append(args, "--no-sandbox") // the sandbox does not start as root
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, append(args, "about:blank")...)
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // descriptors 3 and 4, as the flag expects
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s does not start: %v", path, err)
	}
	for _, f := range cmd.ExtraFiles {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	b := &browser{in: in, waiting: map[int]chan message{}, arrived: make(chan struct{})}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read(out)
	}()
	t.Cleanup(func() {
		b.call(t, "", "Browser.close", nil, nil)
		<-read // the browser has closed its end
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if err := errors.Join(in.Close(), out.Close()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// read passes on responses and keeps events, until the browser ends.
func (b *browser) read(out io.Reader) {
	for in := bufio.NewReader(out); ; {
		text, err := in.ReadBytes(0)
		var m message
		if err == nil {
			err = json.Unmarshal(text[:len(text)-1], &m)
		}
		b.mu.Lock()
		switch {
		case err != nil:
			b.err = fmt.Errorf("the browser has ended: %w", err)
			for _, c := range b.waiting {
				close(c)
			}
		case m.ID != 0:
			b.waiting[m.ID] <- m // has room for it
			delete(b.waiting, m.ID)
		default:
			b.events = append(b.events, m)
		}
		close(b.arrived)
		b.arrived = make(chan struct{})
		b.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// browserPatience is how long a command or an event may take on a busy machine.
const browserPatience = time.Minute

// call sends a command to a session, or to the browser itself if session is empty, and
// decodes the response into result unless that is nil.
func (b *browser) call(t *testing.T, session, method string, params, result any) {
	t.Helper()
	response, err := b.send(session, method, params)
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	patience := time.NewTimer(browserPatience)
	defer patience.Stop()
	select {
	case m, ok := <-response:
		switch {
		case !ok:
			t.Fatalf("%s: the browser ended", method)
		case m.Error != nil:
			t.Fatalf("%s: %s", method, m.Error.Message)
		case result != nil:
			if err := json.Unmarshal(m.Result, result); err != nil {
				t.Fatalf("%s: %v in %s", method, err, m.Result)
			}
		}
	case <-patience.C:
		t.Fatalf("%s: no response after %v", method, browserPatience)
	}
}

func (b *browser) send(session, method string, params any) (response chan message, err error) {
	if params == nil {
		params = struct{}{}
	}
	text, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil, b.err
	}
	b.next++
	if text, err = json.Marshal(message{ID: b.next, Session: session, Method: method, Params: text}); err != nil {
		return nil, err
	}
	response = make(chan message, 1)
	b.waiting[b.next] = response
	_, err = b.in.Write(append(text, 0))
	return response, err
}

// await returns the events of a session up to the first for which last returns true.
func (b *browser) await(t *testing.T, session, what string, last func(message) bool) []message {
	t.Helper()
	patience := time.NewTimer(browserPatience)
	defer patience.Stop()
	for {
		b.mu.Lock()
		all := slices.DeleteFunc(slices.Clone(b.events), func(m message) bool { return m.Session != session })
		err, arrived := b.err, b.arrived
		b.mu.Unlock()
		if i := slices.IndexFunc(all, last); i >= 0 {
			return all[:i+1]
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-arrived:
		case <-patience.C:
			t.Fatalf("%s: not seen after %v", what, browserPatience)
		}
	}
}

// A tab is a page of the browser.
type tab struct {
	t               *testing.T
	browser         *browser
	session, target string
}

// openTab opens an empty page of the given size, and has it report what it logs and
// requests.
func (b *browser) openTab(t *testing.T, width, height int) *tab {
	t.Helper()
	var created struct{ TargetID string }
	b.call(t, "", "Target.createTarget", map[string]any{"url": "about:blank"}, &created)
	var attached struct{ SessionID string }
	b.call(t, "", "Target.attachToTarget", map[string]any{"targetId": created.TargetID, "flatten": true}, &attached)
	p := &tab{t: t, browser: b, session: attached.SessionID, target: created.TargetID}
	for _, domain := range []string{"Page", "Network", "Runtime", "Log"} {
		p.do(domain+".enable", nil, nil)
	}
	p.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	return p
}

func (p *tab) close() {
	p.t.Helper()
	p.browser.call(p.t, "", "Target.closeTarget", map[string]any{"targetId": p.target}, nil)
}

// do sends a command to the page.
func (p *tab) do(method string, params, result any) {
	p.t.Helper()
	p.browser.call(p.t, p.session, method, params, result)
}

// navigate opens an address, and waits until it is loaded.
func (p *tab) navigate(address string) {
	p.t.Helper()
	var opened struct{ ErrorText string }
	p.do("Page.navigate", map[string]any{"url": address}, &opened)
	if opened.ErrorText != "" {
		p.t.Fatalf("%s: %s", address, opened.ErrorText)
	}
	p.browser.await(p.t, p.session, "the end of loading", func(m message) bool { return m.Method == "Page.loadEventFired" })
}

// colourScheme sets the reader's preference: light or dark.
func (p *tab) colourScheme(name string) {
	p.t.Helper()
	p.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": name}}}, nil)
}

// evaluate decodes the value of a JavaScript expression into result.
func (p *tab) evaluate(expression string, result any) {
	p.t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	p.do("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &got)
	if got.ExceptionDetails != nil {
		p.t.Fatalf("the expression failed: %s", got.ExceptionDetails)
	}
	if err := json.Unmarshal(got.Result.Value, result); err != nil {
		p.t.Fatalf("%v in %s", err, got.Result.Value)
	}
}

// screenshot returns a PNG of the visible part of the page.
func (p *tab) screenshot() []byte {
	p.t.Helper()
	var got struct{ Data []byte }
	p.do("Page.captureScreenshot", map[string]any{"format": "png"}, &got)
	return got.Data
}
