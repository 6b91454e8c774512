package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// healthcheckCmd is for container health checks, in images without a shell.
type healthcheckCmd struct {
	URL     string        `arg:"" name:"url" help:"What to GET, as in http://127.0.0.1:8080/readyz."`
	Timeout time.Duration `default:"3s" help:"How long to wait for the answer."`
}

// Run gets the URL. If the answer is not a 200, the error quotes its beginning.
func (c *healthcheckCmd) Run(ctx context.Context, _ *app) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return usageErrorf("healthcheck: %s", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 512))
	if err != nil {
		return fmt.Errorf("healthcheck: %s: %w", resp.Status, err)
	}
	return fmt.Errorf("healthcheck: %s: %s", resp.Status, body)
}
