package api

import (
	"net/http"

	"github.com/labstack/echo/v4"
)

// health says that the process is there. It asks no database: an outage of that must not make anyone restart the pods.
func (s *server) health(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"status": "ok", "boot": s.r.Boot()})
}

// ready says whether this pod may take work.
func (s *server) ready(c echo.Context) error {
	ready, reasons := s.r.Ready()
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
	}
	if reasons == nil {
		reasons = []string{}
	}
	return c.JSON(status, map[string]any{"ready": ready, "reasons": reasons, "running": s.r.Running()})
}
