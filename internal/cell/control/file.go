package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/shoal-serving/shoal/internal/cell"
	"github.com/shoal-serving/shoal/internal/placement"
)

// Nodes says which nodes may exist. It is asked again and again.
type Nodes interface {
	Nodes(context.Context) ([]cell.Node, error)
}

// Models says which models are wanted, and the quotas of tenants. It is asked again and again.
type Models interface {
	Models(context.Context) ([]cell.Model, map[string]placement.Quota, error)
}

// A File is a YAML file with nodes and models. It is read again whenever it is asked, and parsed
// if it has changed: with 10,000 models that takes much longer. It has one caller at a time.
type File struct {
	Path   string
	text   []byte
	parsed contents
}

// contents is the format of the file.
type contents struct {
	Nodes   []fileNode            `yaml:"nodes"`
	Models  map[string]fileModel  `yaml:"models"`
	Tenants map[string]fileTenant `yaml:"tenants"`
}

type fileNode struct {
	Name string `yaml:"name"`
	HTTP string `yaml:"http"`
	GRPC string `yaml:"grpc"`
	DNS  string `yaml:"dns"` // a name: each of its addresses is a node, with the ports of http and grpc
}

type fileModel struct {
	Tenant    string        `yaml:"tenant"`
	Copies    int           `yaml:"copies"`
	Objective time.Duration `yaml:"objective"`
	Hedge     time.Duration `yaml:"hedge"`
	Split     map[int64]int `yaml:"split"` // percent by version
}

type fileTenant struct {
	Copies     int     `yaml:"copies"`
	MemoryMiB  int64   `yaml:"memory_mib"`
	DeviceTime float64 `yaml:"device_time"`
}

func (f *File) read() (*contents, error) {
	text, err := os.ReadFile(f.Path)
	if err != nil {
		return nil, err
	}
	if f.text == nil || !bytes.Equal(text, f.text) {
		c, err := parse(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		f.text, f.parsed = text, c
	}
	return &f.parsed, nil
}

func parse(text io.Reader) (c contents, err error) {
	d := yaml.NewDecoder(text)
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, err
	}
	if len(c.Nodes) == 0 {
		return c, errors.New("nodes: found none, expected at least one, such as {http: \"10.0.0.1:8000\", grpc: \"10.0.0.1:8001\"}")
	}
	for i, n := range c.Nodes {
		if err := n.check(); err != nil {
			return c, fmt.Errorf("nodes[%d]: %w", i, err)
		}
	}
	for name, m := range c.Models {
		if name == "" || strings.ContainsAny(name, "/?# ") {
			return c, fmt.Errorf("models: %q is not a name of a model", name)
		}
		if m.Copies < 0 || m.Objective < 0 || m.Hedge < 0 {
			return c, fmt.Errorf("models.%s: copies, objective and hedge must not be negative", name)
		}
		if err := m.checkSplit(); err != nil {
			return c, fmt.Errorf("models.%s.split: %w", name, err)
		}
	}
	return c, nil
}

func (m *fileModel) checkSplit() error {
	sum := 0
	for version, percent := range m.Split {
		if version < 1 || percent < 0 {
			return fmt.Errorf("found %d: %d, expected a version and its percentage", version, percent)
		}
		sum += percent
	}
	if len(m.Split) > 0 && sum != 100 {
		return fmt.Errorf("the percentages add up to %d, expected 100", sum)
	}
	return nil
}

// shares returns the split, ordered by version.
func (m *fileModel) shares() (all []cell.Share) {
	for _, version := range slices.Sorted(maps.Keys(m.Split)) {
		all = append(all, cell.Share{Version: strconv.FormatInt(version, 10), Percent: uint32(m.Split[version])})
	}
	return all
}

func (n *fileNode) check() error {
	check, expected := func(s string) error { _, err := netip.ParseAddrPort(s); return err }, "expected an IP address and a port, such as 10.0.0.1:8000; dns finds nodes by a name"
	if n.DNS != "" {
		check, expected = func(s string) error { _, err := strconv.ParseUint(s, 10, 16); return err }, "expected a port beside dns, such as 8000"
	}
	if check(n.HTTP) != nil {
		return fmt.Errorf("http: found %q, %s", n.HTTP, expected)
	}
	if n.GRPC != "" && check(n.GRPC) != nil {
		return fmt.Errorf("grpc: found %q, %s", n.GRPC, expected)
	}
	return nil
}

// Nodes implements [Nodes].
func (f *File) Nodes(ctx context.Context) ([]cell.Node, error) {
	c, err := f.read()
	if err != nil {
		return nil, err
	}
	return c.resolve(ctx)
}

func (c *contents) resolve(ctx context.Context) (all []cell.Node, err error) {
	for _, n := range c.Nodes {
		if n.DNS == "" {
			all = append(all, cell.Node{Name: cmp.Or(n.Name, n.HTTP), HTTP: n.HTTP, GRPC: n.GRPC})
			continue
		}
		hosts, err := net.DefaultResolver.LookupHost(ctx, n.DNS)
		if err != nil {
			return nil, err
		}
		for _, host := range oneFamily(hosts) {
			node := cell.Node{Name: host, HTTP: net.JoinHostPort(host, n.HTTP), DNS: n.DNS}
			if n.GRPC != "" {
				node.GRPC = net.JoinHostPort(host, n.GRPC)
			}
			all = append(all, node)
		}
	}
	names := map[string]bool{}
	for _, n := range all {
		if names[n.Name] {
			return nil, fmt.Errorf("nodes: two are called %q", n.Name)
		}
		names[n.Name] = true
	}
	return all, nil
}

// oneFamily returns the addresses of version 4, or those of version 6 if there are no others: a node
// that has both is one node. They are sorted, because answers have them in changing order.
func oneFamily(hosts []string) []string {
	if v4 := slices.DeleteFunc(slices.Clone(hosts), func(host string) bool { return strings.Contains(host, ":") }); len(v4) > 0 {
		hosts = v4
	}
	return slices.Compact(slices.Sorted(slices.Values(hosts)))
}

// Models implements [Models].
func (f *File) Models(context.Context) (models []cell.Model, quotas map[string]placement.Quota, err error) {
	c, err := f.read()
	if err == nil {
		models, quotas = c.models()
	}
	return models, quotas, err
}

func (c *contents) models() (models []cell.Model, quotas map[string]placement.Quota) {
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		m := c.Models[name]
		models = append(models, cell.Model{Name: name, Tenant: m.Tenant, Objective: m.Objective, Copies: m.Copies, Hedge: m.Hedge, Split: m.shares()})
	}
	quotas = map[string]placement.Quota{}
	for tenant, q := range c.Tenants {
		quotas[tenant] = placement.Quota{Bytes: q.MemoryMiB << 20, Copies: q.Copies, Device: q.DeviceTime}
	}
	return models, quotas
}

// wanted reads both from one text.
func wanted(ctx context.Context, text io.Reader) (w cell.Wanted, err error) {
	c, err := parse(text)
	if err != nil {
		return w, err
	}
	w.Models, w.Quotas = c.models()
	w.Nodes, err = c.resolve(ctx)
	return w, err
}
