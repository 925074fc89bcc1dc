// Package fib looks up what a network namespace routes, and the addresses it has, whichever program added them.
package fib
