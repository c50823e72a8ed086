package demo

import (
	"github.com/trapeze-run/trapeze/internal/cli"

	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// screen prints lines and, on a terminal, live progress bars below them. Only one goroutine may use it.
type screen struct {
	out  io.Writer
	live bool // whether the output is a terminal whose cursor can be moved
	bars *mpb.Progress
	open []*bar
}

func newScreen(out io.Writer) *screen {
	return &screen{out: out, live: cli.IsTerminal(out)}
}

// say prints a line, above any bars.
func (s *screen) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...) + "\n"
	if s.bars != nil {
		_, _ = s.bars.Write([]byte(line))
		return
	}
	_, _ = io.WriteString(s.out, line)
}

// bar adds a progress bar below the others. clear ends all bars.
func (s *screen) bar(name, unit string) *bar {
	b := &bar{screen: s, name: name, unit: unit, said: time.Now()}
	b.note.Store(new(string))
	if !s.live {
		return b
	}
	if s.bars == nil {
		s.bars = mpb.New(mpb.WithOutput(s.out), mpb.WithRefreshRate(80*time.Millisecond), mpb.WithWidth(96))
	}
	b.line = s.bars.New(0, mpb.BarStyle().Lbound("").Filler("█").Tip("█").Padding("░").Rbound(""),
		mpb.PrependDecorators(decor.Name("  "+name, decor.WC{W: 18, C: decor.DindentRight})),
		mpb.AppendDecorators(
			decor.Any(func(decor.Statistics) string { return " " + b.count() }, decor.WC{W: 25, C: decor.DindentRight}),
			decor.Any(func(decor.Statistics) string { return *b.note.Load() }, decor.WC{W: 26, C: decor.DindentRight}),
		))
	s.open = append(s.open, b)
	return b
}

// clear stops updating the bars and leaves them on the screen, so that later lines are printed below them.
func (s *screen) clear() {
	if s.bars == nil {
		return
	}
	for _, b := range s.open {
		b.line.Abort(false)
	}
	s.bars.Wait()
	s.bars, s.open = nil, nil
}

// bar shows the progress of one task.
type bar struct {
	*screen
	name, unit  string
	line        *mpb.Bar // nil if the output is not a terminal
	done, total atomic.Int64
	note        atomic.Pointer[string]
	said        time.Time // when a plain line last reported the progress
}

// plainEvery is how often progress is reported in plain lines.
const plainEvery = 3 * time.Second

// set updates the progress.
func (b *bar) set(done, total int64) {
	if total <= 0 || done == b.done.Load() && total == b.total.Load() {
		return
	}
	b.done.Store(done)
	b.total.Store(total)
	if b.line != nil {
		b.line.SetTotal(total+1, false) // total+1 keeps the bar incomplete until end is called
		b.line.SetCurrent(done)
		return
	}
	if time.Since(b.said) >= plainEvery {
		b.said = time.Now()
		b.say("  %-16s %s", b.name, b.count())
	}
}

// remark shows a few words next to the bar.
func (b *bar) remark(words string) { b.note.Store(&words) }

// end fills the bar and shows a remark. Without a terminal, it prints the result as a single line.
func (b *bar) end(words string) {
	b.remark(words)
	if b.line != nil {
		total := max(b.total.Load(), 1)
		b.line.SetTotal(total, false)
		b.line.SetCurrent(total)
		b.line.SetTotal(total, true)
		return
	}
	b.say("  %-16s %-22s %s", b.name, b.count(), words)
}

// remove removes the bar from the screen.
func (b *bar) remove() {
	if b.line != nil {
		b.line.Abort(true)
	}
}

func (b *bar) count() string {
	done, total := b.done.Load(), b.total.Load()
	switch {
	case total == 0:
		return ""
	case done >= total:
		return thousands(total) + " " + b.unit
	}
	return thousands(done) + " of " + thousands(total) + " " + b.unit
}

// thousands formats an integer with thousands separators.
func thousands(n int64) string { return commas(strconv.FormatInt(n, 10)) }

// commas inserts thousands separators into the integer part of a decimal number.
func commas(digits string) string {
	whole := len(digits)
	for i, c := range digits {
		if c == '.' {
			whole = i
			break
		}
	}
	for i := whole - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
