// Package bridge is the engine for the flows and groups of one bridge: it keeps a connection, commits changes in atomic bundles, reads back the
// programmed state, and reports the changes of others. It has no code for networks, and it logs nothing.
package bridge
