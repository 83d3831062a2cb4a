package modelconfig

// maxName is the most characters of a model's name.
const maxName = 128

// NameRule is what errors say is expected of a name.
const NameRule = "up to 128 letters, digits, dots, dashes and underscores, the first a letter or a digit"

// ValidName reports whether a model may be called so, by [NameRule]. Names become
// parts of paths, addresses and metrics; one that is valid cannot lead out of a
// directory. Whoever gets a name from outside asks this before anything else looks
// at it.
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
