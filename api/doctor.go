package api

import (
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/inside"
)

var doctorRoutes = []Route{
	{Method: http.MethodGet, Path: "/doctor", Needs: access.WorkersView, Summary: "Check the server, tables, pods, lanes and schedules",
		query: []string{"transactions", "overdue"}, out: object("findings", listOf(of[doctor.Finding]())), do: examine},
}

func examine(c *call) (any, error) {
	var t doctor.Thresholds
	var err error
	if t.Transaction, err = ageParam(c, "transactions"); err != nil {
		return nil, err
	}
	if t.Overdue, err = ageParam(c, "overdue"); err != nil {
		return nil, err
	}
	found, err := inside.Of(c.r).Pod.Examine(c.ctx(), c.lists, t)
	return map[string]any{"findings": found}, err
}

// ageParam reads a threshold for the doctor checks.
func ageParam(c *call, name string) (time.Duration, error) {
	text := c.QueryParam(name)
	if text == "" {
		return doctor.DefaultThreshold, nil
	}
	age, err := time.ParseDuration(text)
	if err != nil || age < 0 {
		return 0, response.Invalid("%s %q: want a duration of 0 or more, such as 5m", name, text)
	}
	return age, nil
}
