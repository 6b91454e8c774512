// Package e2e holds the black-box tests: they build cmd/farandole once and
// drive it as processes and as containers, from the outside only.
//
// Most run wherever Go does, and those that need Postgres where it is. The one
// that needs Docker builds images, for minutes: FARANDOLE_REQUIRE=docker,postgres
// runs it, and makes a missing one a failure instead of a skip. FARANDOLE_LONG=1
// lengthens storms and kills (make chaos).
//
// images.sh builds the base images for machines that cannot pull any.
package e2e
