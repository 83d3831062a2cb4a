package kserve

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/reference"
)

// advice has what a client should do about an error, for each code.
var advice = [infer.NumCodes]struct{ meaning, fix string }{
	infer.Internal:        {"The model or the server failed.", "Look at the server's log. If it shows a panic, report it; otherwise fix the model."},
	infer.Invalid:         {"The request does not match the model, or is not well-formed.", "Compare the request with `shoal ls`. The `hint` and the `example` in the body of an HTTP error show what the model expects."},
	infer.NotFound:        {"The model or the version does not exist.", "Check the name with `shoal ls`; names are case-sensitive."},
	infer.Unsupported:     {"The server does not support what the request asks for.", "Change the request; the message says what is supported instead."},
	infer.Unavailable:     {"The model is being loaded or unloaded, its workers cannot start, mode demand has no memory for it now, or the server is starting or stopping.", "Retry later, or on another server. If it persists, `POST /v2/repository/index` and the log have the reason."},
	infer.Overloaded:      {"The queue of the model is full, or the memory for requests is used up.", "Wait for `Retry-After` and retry. If it persists, add servers, or raise `--max-queue-size`."},
	infer.Late:            {"The response would miss the deadline of the request, or the latency objective of the model.", "Wait for `Retry-After` and retry, or allow more time. If it persists, add servers."},
	infer.QueueTimeout:    {"The request waited longer than the queue policy of the model allows.", "Retry later, or raise `default_timeout_microseconds`."},
	infer.Deadline:        {"The deadline of the client passed before the response was ready.", "Allow more time, or send less load."},
	infer.Cancelled:       {"The client cancelled the request or closed its connection.", "Nothing: the status appears only in the log and in metrics."},
	infer.Forbidden:       {"The caller may not do this, or no client of this server may.", "Ask the operator; [Security](../explanation/security.md) lists the flags and the roles that allow it."},
	infer.Unauthenticated: {"The request has no valid credentials, and the server requires some.", "Send an API key or a token in the Authorization header, or use a client certificate."},
	infer.Outdated:        {"The epoch of a load or unload (`Shoal-Epoch`) is lower than one that the server has seen.", "Stop sending changes: another controller has taken over."},
}

func TestTheReferenceOfErrorsIsCurrent(t *testing.T) {
	var out strings.Builder
	for i := range infer.NumCodes {
		code := infer.Code(i)
		a := advice[i]
		if a.meaning == "" || a.fix == "" {
			t.Errorf("the code %q has no advice", code)
		}
		status := fmt.Sprintf("HTTP %d, gRPC %s", HTTPStatus(code), grpcName(code))
		if triton := TritonCode(code); triton != code {
			status += fmt.Sprintf("; with `--triton-status` %d and %s", HTTPStatus(triton), grpcName(triton))
		}
		fmt.Fprintf(&out, "### %s\n\n%s.\n\n%s", titleCase(code.String()), status, reference.Paragraphs("**Meaning.** "+a.meaning+"\n\n**What to do.** "+a.fix))
	}
	reference.Section(t, "errors.md", "codes", strings.TrimSpace(out.String())+"\n")

	out.Reset()
	for _, format := range messages {
		if format == "" {
			continue // the text of the error is sent
		}
		text := strings.NewReplacer("%[1]s", "MODEL", "%[2]s", "VERSION", "%[3]v", "CAUSE", "%[4]s", "ID", "%[5]d", "N", "%[6]s", "SEQUENCE").Replace(format)
		if len(text) > 100 { // a page has 100 columns
			at := strings.LastIndexByte(text[:100], ' ')
			text = text[:at] + "\n  " + text[at+1:]
		}
		out.WriteString(text + "\n")
	}
	reference.Section(t, "errors.md", "messages", "```text\n"+out.String()+"```\n")
}

// grpcName returns the name of the gRPC code as the protocol writes it.
func grpcName(c infer.Code) string {
	var out strings.Builder
	for i, r := range GRPCCode(c).String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			out.WriteByte('_')
		}
		out.WriteRune(r)
	}
	return strings.ToUpper(out.String())
}

func titleCase(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
