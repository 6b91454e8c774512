// Package docs holds the tests of the documents: what they name exists, and
// the code they show is the code that is compiled and tested.
package docs
