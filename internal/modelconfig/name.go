package modelconfig

// maxName is the maximum length of a model's name in characters.
const maxName = 128

// NameRule describes valid names in error messages.
const NameRule = "up to 128 letters, digits, dots, dashes and underscores, the first a letter or a digit"

// ValidName reports whether name is a valid model name according to [NameRule]. Names
// become parts of paths, URLs and metrics; a valid name cannot leave a directory. Names
// from outside must be checked with ValidName before any other use.
func ValidName(name string) bool {
	if name == "" || len(name) > maxName || !alphanumeric(name[0]) {
		return false
	}
	for i := range len(name) {
		if c := name[i]; !alphanumeric(c) && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
