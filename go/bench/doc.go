// Package bench races the module against other WebSocket libraries. It is a module of its own, so that its dependencies are
// not those of the users.
package bench
