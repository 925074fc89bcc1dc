// Package session keeps a connection to an OVSDB server with a complete copy of one database: Open_vSwitch for package
// ovsdb, OVN_Northbound or OVN_Southbound for an engine of OVN.
//
// # How to use it
//
// A [Keeper] makes one [Session] after the other. [Keeper.Do] runs a function with the current session, and runs it
// again with the next one if the connection is lost meanwhile:
//
//	keeper, err := session.Keep(ctx, session.Config{
//		Database:   "OVN_Northbound",
//		Tables:     map[string]model.Model{"Logical_Switch": &LogicalSwitch{}}, // the columns that are used, and no others
//		Endpoints:  []string{"ssl:192.0.2.1:6641", "ssl:192.0.2.2:6641", "ssl:192.0.2.3:6641"},
//		TLS:        config,
//		LeaderOnly: true,
//		Changed:    func(table string) { signal(dirty) },   // never blocks
//		Connected:  func(again bool) { if again { resync() } },
//	})
//	err = keeper.Do(ctx, func(s *session.Session) error {
//		if err := s.Sync(ctx); err != nil { // the copy has all that was committed before
//			return err
//		}
//		have := session.Rows[LogicalSwitch](s, "Logical_Switch")
//		results, err := s.Transact(ctx, plan(have)...)
//		if err != nil {
//			return err // ErrLost: the outcome is unknown, Do calls again with a new copy
//		}
//		return session.Check(operations, results)
//	})
//
// # What a session promises
//
//   - The copy is complete before [Keeper.Do] sees the session, and each update is applied whole. An update that does not
//     fit ends the session.
//   - A session ends with its connection ([Session.Lost]) and is never repaired. The next one starts with a new copy,
//     so nothing depends on what was sent in between. The keeper reconnects at once after a session of more than two
//     seconds; after a shorter one it waits as after a failed attempt, for up to three seconds.
//   - [Session.Transact] returns [ErrLost] when the connection breaks before the answer. The transaction may be in
//     effect. A caller plans again from the next copy; with row UUIDs that the client chooses (Operation.UUID), a
//     repeated insert fails instead of making a duplicate.
//   - With LeaderOnly, a session is with the leader of a clustered database. It ends when that server loses the
//     leadership or the contact with its cluster. A standalone server is always accepted.
//   - An idle connection is probed every ProbeInterval with a transaction that selects no row.
//
// The rows of the copy belong to the session and are read only. A reader that follows references takes the copy of
// several tables one after the other, so a reference may lead to a row that was just added or removed; it reads
// again after [Session.Sync].
//
// # Why not libovsdb's client
//
// Operations, results and the tags of rows are libovsdb's. Its client is not used: it decodes each value of a copy three
// times, so that a copy of 270 rows takes 20 ms of processor time instead of 6; it drops events when its queue is full; its
// reconnection panics when the back-off ends, and resumes from a transaction number that its cache may not match.
package session
