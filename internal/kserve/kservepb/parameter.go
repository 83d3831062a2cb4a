package kservepb

// Value returns the value of a parameter, or nil if it has none. It complements the
// generated getters, which return one type each.
func (x *InferParameter) Value() any {
	switch v := x.GetParameterChoice().(type) {
	case *InferParameter_BoolParam:
		return v.BoolParam
	case *InferParameter_Int64Param:
		return v.Int64Param
	case *InferParameter_Uint64Param:
		return v.Uint64Param
	case *InferParameter_DoubleParam:
		return v.DoubleParam
	case *InferParameter_StringParam:
		return v.StringParam
	}
	return nil
}
