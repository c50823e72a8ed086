// The navigation, in reading order. Every page is here, but for the design decisions, which their index lists.
const page = (text, link) => ({ text, link: '/' + link })

export const sidebar = [
  { text: 'Start', items: [page('Quick start', 'quick-start'), page('Comparison', 'comparison'), page('Glossary', 'glossary')] },
  {
    text: 'Concepts',
    items: [
      page('Jobs and their states', 'concepts/jobs'),
      page('The hand-off', 'concepts/hand-off'),
      page('Leases, fences and recovery', 'concepts/leases'),
      page('Lanes, slots and subjects', 'concepts/lanes'),
      page('The queue in SQL', 'queue-in-sql'),
      page('Pipelines', 'pipelines'),
      page('Schedules', 'scheduling'),
      page('Guarantees', 'guarantees'),
    ],
  },
  {
    text: 'Guides',
    items: [
      page('Embed it in a service', 'embedding'),
      page('Enqueue in a transaction', 'transactions'),
      page('Enqueue from SQL', 'enqueue-from-sql'),
      page('Exactly-once writes', 'writes'),
      page('Retries and failure paths', 'retries'),
      page('Limits, fairness, rates', 'limits'),
      page('Unique, debounce, order', 'unique'),
      page('Batches', 'batches'),
      page('Remote workers', 'remote-workers'),
      page('Temporal', 'temporal'),
      page('Test your jobs', 'testing-your-jobs'),
      page('Move from River', 'migrating/river'),
    ],
  },
  {
    text: 'Operations',
    items: [
      page('Deploy', 'deploying'),
      page('Where it runs', 'where-it-runs'),
      page('Scale', 'scaling'),
      page('Versions and upgrades', 'upgrading'),
      page('Database roles and grants', 'grants'),
      page('High availability', 'high-availability'),
      page('Logical replication, CDC, blue/green', 'logical-replication'),
      page('Backup and point-in-time restore', 'backup-and-restore'),
      page('Personal data and erasure', 'erasure'),
      page('On call', 'operating'),
      page('Metrics, traces and logs', 'observability'),
      page('Dashboard', 'dashboard'),
      page('Live feed', 'live-feed'),
    ],
  },
  {
    text: 'Reference',
    items: [
      page('Overview', 'reference'),
      page('Commands', 'reference-commands'),
      page('Environment', 'reference-environment'),
      page('HTTP', 'reference-http'),
      page('Metrics', 'reference-metrics'),
      page('Errors', 'reference-errors'),
      page('Errors: what to do', 'errors'),
    ],
  },
  {
    text: 'Inside',
    items: [
      page('Architecture', 'architecture'),
      page('Design decisions', 'adr/README'),
      page('Benchmarks', 'benchmarks'),
      page('Dependencies', 'dependencies'),
      page('How Trapeze is tested', 'testing'),
    ],
  },
]
