package kservegrpc

import (
	"context"
	"maps"
	"slices"

	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

func (s *service) TraceSetting(ctx context.Context, in *kservepb.TraceSettingRequest) (*kservepb.TraceSettingResponse, error) {
	var wanted map[string][]string // nil if there are none: the client only reads
	for name, value := range in.GetSettings() {
		if wanted == nil {
			wanted = map[string][]string{}
		}
		wanted[name] = value.GetValue()
	}
	settings, err := kserve.ChangeTrace(ctx, s.catalog, s.opts.Tracer, in.GetModelName(), wanted)
	if err != nil {
		return nil, err
	}
	out := &kservepb.TraceSettingResponse{Settings: map[string]*kservepb.TraceSettingResponse_SettingValue{}}
	for _, t := range settings {
		out.Settings[t.Name] = &kservepb.TraceSettingResponse_SettingValue{Value: []string{t.Value}}
	}
	return out, nil
}

func (s *service) LogSettings(ctx context.Context, in *kservepb.LogSettingsRequest) (*kservepb.LogSettingsResponse, error) {
	change, err := logChange(in.GetSettings())
	if err != nil {
		return nil, err
	}
	l, err := kserve.ChangeLog(ctx, s.catalog, s.opts.Logging, change)
	if err != nil {
		return nil, err
	}
	return &kservepb.LogSettingsResponse{Settings: map[string]*kservepb.LogSettingsResponse_SettingValue{
		kserve.LogFile:    {ParameterChoice: &kservepb.LogSettingsResponse_SettingValue_StringParam{StringParam: l.File}},
		kserve.LogInfo:    {ParameterChoice: &kservepb.LogSettingsResponse_SettingValue_BoolParam{BoolParam: l.Info}},
		kserve.LogWarning: {ParameterChoice: &kservepb.LogSettingsResponse_SettingValue_BoolParam{BoolParam: l.Warning}},
		kserve.LogError:   {ParameterChoice: &kservepb.LogSettingsResponse_SettingValue_BoolParam{BoolParam: l.Error}},
		kserve.LogVerbose: {ParameterChoice: &kservepb.LogSettingsResponse_SettingValue_Uint32Param{Uint32Param: l.Verbose}},
		kserve.LogFormat:  {ParameterChoice: &kservepb.LogSettingsResponse_SettingValue_StringParam{StringParam: l.Format}},
	}}, nil
}

// logChange processes settings in the order of their names, as loadOptions does, and
// ignores unknown ones, as Triton does.
func logChange(settings map[string]*kservepb.LogSettingsRequest_SettingValue) (c kserve.LogChange, err error) {
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		switch name {
		case kserve.LogFile:
			err = kserve.ErrLogFile
		case kserve.LogInfo:
			c.Info, err = boolSetting(name, settings[name])
		case kserve.LogWarning:
			c.Warning, err = boolSetting(name, settings[name])
		case kserve.LogError:
			c.Error, err = boolSetting(name, settings[name])
		case kserve.LogVerbose:
			p, ok := settings[name].GetParameterChoice().(*kservepb.LogSettingsRequest_SettingValue_Uint32Param)
			if !ok {
				return c, mistyped(name, "uint32_param")
			}
			c.Verbose = &p.Uint32Param
		case kserve.LogFormat:
			p, ok := settings[name].GetParameterChoice().(*kservepb.LogSettingsRequest_SettingValue_StringParam)
			if !ok {
				return c, mistyped(name, "string_param")
			}
			c.Format = &p.StringParam
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

func boolSetting(name string, value *kservepb.LogSettingsRequest_SettingValue) (*bool, error) {
	p, ok := value.GetParameterChoice().(*kservepb.LogSettingsRequest_SettingValue_BoolParam)
	if !ok {
		return nil, mistyped(name, "bool_param")
	}
	return &p.BoolParam, nil
}
