package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx" of database/sql
	"github.com/outbox-dispatcher/outbox"
)

// The order and the task that announces it are committed together, or not at all.
func ExampleEnqueue() {
	ctx := context.Background()
	placeOrder := func(conn *pgx.Conn, customer string) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			var order int64
			err := tx.QueryRow(ctx, "insert into orders (customer) values ($1) returning id", customer).Scan(&order)
			if err != nil {
				return err
			}
			_, err = outbox.Enqueue(ctx, tx, outbox.Task{
				Kind:    "order.created",
				Payload: map[string]any{"order": order, "customer": customer},
				Headers: map[string]string{"Content-Type": "application/json"},
			})
			return err
		})
	}

	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := placeOrder(conn, "alice"); err != nil {
		log.Fatal(err)
	}
}

func ExampleEnqueue_databaseSQL() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if _, err := tx.ExecContext(ctx, "update users set reminded = true where id = $1", 7); err != nil {
		log.Fatal(err)
	}
	id, err := outbox.Enqueue(ctx, tx, outbox.Task{
		Kind:      "email",
		Body:      []byte("Time to renew."),
		SendAfter: time.Now().Add(24 * time.Hour),
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("task", id, "leaves tomorrow")
}

// Many tasks are one statement and one round trip. No order is promised among
// them; the ordering key is stored and not used yet.
func ExampleEnqueueMany() {
	ctx := context.Background()
	announce := func(tx pgx.Tx, prices map[string]json.RawMessage) error {
		var tasks []outbox.Task
		for article, price := range prices {
			tasks = append(tasks, outbox.Task{Kind: "price.changed", Payload: price, OrderingKey: article})
		}
		_, err := outbox.EnqueueMany(ctx, tx, tasks)
		return err
	}
	_ = announce
}

func ExampleMigrate() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	applied, err := outbox.Migrate(ctx, conn, outbox.MigrateOptions{Schema: "my_app"})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range applied {
		fmt.Println("applied", m.Name)
	}
}
