// Package devconf reads a device completely, and reads and writes the settings that rtnetlink does not carry: sysctls and offloads.
package devconf
