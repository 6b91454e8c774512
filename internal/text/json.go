package text

import (
	"fmt"
	"reflect"
)

// JSONKind names what JSON has to have for a Go type, as in "a string".
func JSONKind(t reflect.Type) string {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil {
		return "something else"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Float32, reflect.Float64:
		return "a number"
	default:
		return fmt.Sprintf("a whole number of %d bits", t.Bits())
	}
}
