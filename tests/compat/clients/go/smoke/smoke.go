// Package smoke is what the smokes in Go share: the shape of the test data, and one line a check. What the
// arguments BROKERS NAME mean is said in ../python/smoke.py.
package smoke

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Partitions of the topic after those of the codecs, and numbers of records; First and Second are the group's,
// before its second generation and in it.
const (
	Records    = 5
	Timestamps = 6
	Idempotent = 7
	Count      = 50
	First      = 40
	Second     = 4
	BaseMs     = int64(1_700_000_000_000)
)

var (
	Brokers    = os.Args[1]
	Topic      = os.Args[2]
	GroupTopic = Topic + "-group"
	Made       = Topic + "-made"
	Gone       = Topic + "-gone"
	Group      = Topic + "-members"
)

// ErrNotAvailable is wrapped by checks of what the client lacks.
var ErrNotAvailable = errors.New("n/a")

// Lacks is a check of something that the client does not have.
func Lacks(reason string) func(context.Context) error {
	return func(context.Context) error { return fmt.Errorf("%w%s", ErrNotAvailable, reason) }
}

// Check runs one check, for at most 120 seconds, and prints its line.
func Check(client, capability string, run func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 120*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("panic: %v", p)
			}
		}()
		done <- run(ctx)
	}()
	var err error
	select {
	case err = <-done:
	case <-time.After(32 * time.Second):
		err = errors.New("did not end within 32 s")
	}
	status, text := "ok", ""
	if errors.Is(err, ErrNotAvailable) {
		status, text = "n/a", strings.TrimPrefix(err.Error(), "n/a")
	} else if err != nil {
		status, text = "ERR", err.Error()
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 400 {
		text = text[:400]
	}
	fmt.Println(status, client, capability, text)
}

// Same is an error unless both print alike.
func Same(found, expected any, what string) error {
	if a, b := fmt.Sprint(found), fmt.Sprint(expected); a != b {
		return fmt.Errorf("%s: %s instead of %s", what, a, b)
	}
	return nil
}

// Until looks every 20 ms, for at most 15 seconds.
func Until(what string, condition func() (bool, error)) error {
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok, err := condition(); ok || err != nil {
			return err
		}
	}
	return fmt.Errorf("%s did not come within 15 s", what)
}

// Key of record n.
func Key(n int) string { return fmt.Sprintf("key-%d", n) }

// Value of record n.
func Value(n int) string { return strings.Repeat(fmt.Sprintf("value-%d ", n), 20) }
