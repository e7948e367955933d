package main

type migrateCmd struct{}

func (migrateCmd) Run() error { return nil }

type statusCmd struct {
	databaseFlags
	listenFlags
}

func (statusCmd) Run() error { return nil }
