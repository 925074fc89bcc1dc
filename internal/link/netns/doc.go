// Package netns opens network namespaces, and runs work on threads in them.
package netns
