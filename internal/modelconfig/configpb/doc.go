// Package configpb is a model's configuration as it is written in its file.
// make proto generates it from proto/model_config.proto.
package configpb
