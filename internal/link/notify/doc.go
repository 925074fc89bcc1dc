// Package notify reports rtnetlink's notifications of changes that an engine has not made. [Care] is what an engine manages, with which
// [Watch] compares them.
package notify
