// Package terminal writes values for people: text from messages made harmless,
// ages, sizes, numbers and tables. Everything here is for terminals; programs
// get JSON.
package terminal
