package event

import "strings"

// SubjectCovers reports whether every subject that matches b matches a as well;
// both can have wildcards: "redrive.payment.>" covers "redrive.payment.order.placed.v1.*".
func SubjectCovers(a, b string) bool {
	return matchTokens(a, b, func(x, y string) bool { return x == y || x == "*" && y != ">" }, false)
}

// SubjectsCollide reports whether some subject matches both a and b.
func SubjectsCollide(a, b string) bool {
	return matchTokens(a, b, func(x, y string) bool { return x == y || x == "*" || y == "*" }, true)
}

// matchTokens walks two subjects until one has ">"; symmetric also heeds b's.
func matchTokens(a, b string, match func(x, y string) bool, symmetric bool) bool {
	for a != "" && b != "" {
		var x, y string
		x, a, _ = strings.Cut(a, ".")
		y, b, _ = strings.Cut(b, ".")
		switch {
		case x == ">", symmetric && y == ">":
			return true
		case !match(x, y):
			return false
		}
	}
	return a == b
}
