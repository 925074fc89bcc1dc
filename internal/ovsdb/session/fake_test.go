package session_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/database/inmemory"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/ovn-kubernetes/libovsdb/server"
)

// TestFake runs the suite on the server of the library, which executes transactions in memory.
func TestFake(t *testing.T) {
	suite(t, func(t *testing.T) string {
		file, err := os.Open(schemaFile)
		must(t, err)
		defer func() { _ = file.Close() }()
		schema, err := ovsdb.SchemaFromFile(file)
		must(t, err)
		client, err := model.NewClientDBModel(database, map[string]model.Model{table: &box{}})
		must(t, err)
		full, errs := model.NewDatabaseModel(schema, client)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		silent := logr.Discard()
		s, err := server.NewOvsdbServer(inmemory.NewDatabase(map[string]model.ClientDBModel{database: client}, &silent), &silent, full)
		must(t, err)
		socket := filepath.Join(t.TempDir(), "db.sock")
		ended := make(chan error, 1)
		go func() { ended <- s.Serve("unix", socket) }()
		t.Cleanup(func() {
			s.Close()
			must(t, <-ended)
		})
		return socket
	})
}
