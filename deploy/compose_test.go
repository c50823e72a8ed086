package deploy

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/matryer/is"
)

// The Compose library validates the file against the Compose specification, which does not allow unknown fields.
func TestComposeFileHardening(t *testing.T) {
	is := is.New(t)
	options, err := cli.NewProjectOptions([]string{"compose.yaml"}, cli.WithResolvedPaths(true))
	is.NoErr(err)
	project, err := options.LoadProject(t.Context())
	is.NoErr(err)
	pod, err := project.GetService("trapeze")
	is.NoErr(err)

	plain := map[string]string{}
	for name, value := range pod.Environment {
		is.True(value != nil) // without a value, the variable would be taken from the caller's environment
		plain[name] = *value
	}
	checkEnvironment(t, plain)
	accepted(t, plain)
	var secrets []string
	for _, s := range pod.Secrets {
		secrets = append(secrets, "/run/secrets/"+s.Source)
		is.True(project.Secrets[s.Source].File != "")
	}
	for _, file := range []string{plain["PGPASSFILE"], plain["TRAPEZE_TOKENS_FILE"]} {
		is.True(slices.Contains(secrets, file))
	}
	for name := range project.Services["db"].Environment {
		is.True(name != "POSTGRES_PASSWORD")
	}

	is.True(time.Duration(*pod.StopGracePeriod) >= seconds(t, plain["TRAPEZE_SHUTDOWN_GRACE"])+margin)
	is.True(pod.ReadOnly)
	is.Equal(pod.CapDrop, []string{"ALL"})
	is.True(slices.Contains(pod.SecurityOpt, "no-new-privileges:true"))
	is.Equal([]string(pod.HealthCheck.Test), []string{"CMD", "/trapeze", "ping"}) // the image's test runs this command
	is.True(strings.Contains(read(t, "../docs/reference-commands.md"), "\n## trapeze "+pod.Command[0]+"\n"))
	is.True(strings.HasSuffix(plain["TRAPEZE_HTTP_ADDR"], ":8080"))
	is.Equal(pod.Ports[0].Target, uint32(8080))
	is.Equal(pod.Ports[0].HostIP, "127.0.0.1") // other machines reach the port through a TLS proxy
	is.Equal(pod.DependsOn["db"].Condition, "service_healthy")
	is.True(project.Services["db"].HealthCheck != nil)
}
