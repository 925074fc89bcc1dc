// Package confdb reads Open vSwitch's configuration database (ovs-vswitchd.conf.db(5)): consistent copies of it, arranged by name, with what
// the switch reports about each row and which rows are the program's. It writes nothing; the engine for the database is package ovsdb.
package confdb
