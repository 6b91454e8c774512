// Package e2e holds the black-box tests: they build cmd/farandole once and
// drive it as processes and as containers, from the outside only.
//
// Most run wherever Go does. Those that take long run with FARANDOLE_LONG=1,
// and those that need Docker or Postgres where it is; FARANDOLE_REQUIRE=docker,postgres
// makes a missing one a failure instead of a skip.
//
// images.sh builds the base images for machines that cannot pull any.
package e2e
