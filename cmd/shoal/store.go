package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shoal-serving/shoal/internal/listen"
	"github.com/shoal-serving/shoal/internal/mms"
	"github.com/shoal-serving/shoal/internal/mms/mmshttp"
)

// storeOptions are the flags of a model store, as in MMS and TorchServe.
type storeOptions struct {
	dir     string
	models  []string
	config  string
	dialect string
}

func (o *storeOptions) define(f *pflag.FlagSet) {
	f.StringVar(&o.dir, "model-store", "", "`directory` of model archives (.mar), served with the MMS and TorchServe APIs")
	f.StringSliceVar(&o.models, "models", nil, "`archives` of the model store to load at startup, such as m=m.mar; all means every archive")
	f.StringVar(&o.config, "mms-config", "", "config.properties `file` of MMS or TorchServe")
	choiceVar(f, &o.dialect, "model-server", []string{"mms", "torchserve"}, "API dialect of the model store")
}

// used reports whether models come from a store.
func (o *storeOptions) used() bool { return o.dir != "" || o.config != "" }

// check returns an error for flags that have no effect.
func (o *storeOptions) check() error {
	const needs = " needs --model-store or --mms-config"
	switch {
	case o.used():
		return nil
	case len(o.models) > 0:
		return errors.New("--models" + needs)
	case o.dialect != string(mms.MultiModelServer):
		return errors.New("--model-server" + needs)
	}
	return nil
}

// settings returns the settings of the file and the flags, which take precedence. It returns
// nil if there is no store.
func (o *storeOptions) settings() (*mms.Settings, error) {
	if !o.used() {
		return nil, nil
	}
	s := mms.NewSettings()
	if o.config != "" {
		text, err := os.ReadFile(o.config)
		if err != nil {
			return nil, fmt.Errorf("--mms-config: %w", err)
		}
		if err := s.Parse(o.config, string(text), os.Getenv); err != nil {
			return nil, err
		}
	}
	if o.dir != "" {
		s.Store = o.dir
	}
	if len(o.models) > 0 {
		s.Load, s.All = mms.ParseLoad(o.models)
	}
	return s, nil
}

// storePorts returns the ports of a store: inference and management may share one. Changes
// come over that of management, which the clients of MMS know.
func storePorts(models *mms.Store, settings *mms.Settings, opts mmshttp.Options, figures http.Handler) []listen.Port {
	var ports []listen.Port
	all := storeEndpoints(settings, figures != nil)
	shared := !slices.ContainsFunc(all, func(e endpoint) bool { return e.protocol == "management" })
	for _, e := range all {
		switch {
		case e.protocol == "mms_metrics":
			ports = append(ports, listen.HTTP(e.protocol, e.address, figures, e.hint))
		case shared:
			ports = append(ports, listen.AdminHTTP(e.protocol, e.address, mmshttp.Both(models, opts), e.hint))
		case e.protocol == "management":
			ports = append(ports, listen.AdminHTTP(e.protocol, e.address, mmshttp.Management(models, opts), e.hint))
		default:
			ports = append(ports, listen.HTTP(e.protocol, e.address, mmshttp.Inference(models, opts), e.hint))
		}
	}
	return ports
}

// storeEndpoints returns where a store listens. Without one for management, inference serves both.
func storeEndpoints(s *mms.Settings, figures bool) []endpoint {
	const hint = "choose another address in the file of --mms-config"
	all := []endpoint{{"inference", s.Inference, hint}}
	if s.Inference != s.Management || strings.HasSuffix(s.Inference, ":0") {
		all = append(all, endpoint{"management", s.Management, hint})
	}
	if figures {
		all = append(all, endpoint{"mms_metrics", s.Metrics, hint})
	}
	return all
}

// addresses returns the addresses of a config.properties as settings, so that they are
// checked like the others.
func addresses(s *mms.Settings) []setting {
	if s == nil {
		return nil
	}
	var all []setting
	for _, one := range [][2]string{{"inference_address", s.Inference}, {"management_address", s.Management}, {"metrics_address", s.Metrics}} {
		host, _, _ := net.SplitHostPort(one[1]) // it was joined
		all = append(all, setting{name: one[0], value: host})
	}
	return all
}
