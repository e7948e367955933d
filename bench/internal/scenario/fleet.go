package scenario

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/outbox-dispatcher/outbox/dispatcher"
)

// fleet is some dispatchers on one lane, within this process.
type fleet struct {
	lane     *lane
	n        int
	observer dispatcher.Observer // of all of them
}

// Run runs them until ctx ends or one of them does.
func (f fleet) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for range f.n {
		g.Go(func() error {
			p, err := runEmbedded(ctx, f.lane, f.observer)
			if err != nil {
				return err
			}
			select {
			case <-ctx.Done():
			case <-p.ended:
			}
			return p.close(ctx)
		})
	}
	return g.Wait()
}

func (f fleet) start(ctx context.Context) (*product, error) { return embed(ctx, f, nil, nil), nil }
