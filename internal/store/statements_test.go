package store

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// statements lists all SQL statements of the package. TestEveryStatementIsListed checks that none is missing. There is one line per
// statement, sorted by name, so that concurrent changes rarely conflict.
var statements = map[string]string{
	"acceptsWritesSQL":     acceptsWritesSQL,
	"pooledSQL":            pooledSQL,
	"sessionSQL":           sessionSQL,
	"missingClaimsSQL":     missingClaimsSQL.text,
	"noteStartedSQL":       noteStartedSQL.text,
	"heldPageSQL":          heldPageSQL.text,
	"knownClaimsSQL":       knownClaimsSQL.text,
	"advanceIDsSQL":        advanceIDsSQL,
	"clusterStateSQL":      clusterStateSQL,
	"enqueueFreeSQL":       enqueueFreeSQL.text,
	"assignKeySQL":         assignKeySQL.text,
	"acknowledgeSQL":       acknowledgeSQL.text,
	"admitSQL":             admitSQL.text,
	"admitKeysSQL":         admitKeysSQL.text,
	"claimsToAdoptSQL":     claimsToAdoptSQL.text,
	"answerRequestSQL":     answerRequestSQL.text,
	"answerStackSQL":       answerStackSQL.text,
	"analyzeEmptiedSQL":    analyzeEmptiedSQL,
	"bulkBegunSQL":         bulkBegunSQL.text,
	"bulkRestSQL":          bulkRestSQL.text,
	"checkpointSQL":        checkpointSQL.text,
	"claimOutcomeSQL":      claimOutcomeSQL.text,
	"claimSQL":             claimSQL.text,
	"closeLapsedSQL":       closeLapsedSQL.text,
	"emitManySQL":          emitManySQL.text,
	"emitSQL":              emitSQL.text,
	"endBranchesSQL":       endBranchesSQL.text,
	"endSQL":               endSQL.text,
	"endOneSQL":            endOneSQL.text,
	"finishOneSQL":         finishOneSQL.text,
	"enqueueOneSQL":        enqueueOneSQL.text,
	"enqueueOneFreeSQL":    enqueueOneFreeSQL.text,
	"endWaitingSQL":        endWaitingSQL.text,
	"enqueueSQL":           enqueueSQL.text,
	"fanOutSQL":            fanOutSQL.text,
	"goneSQL":              goneSQL.text,
	"finishBranchesSQL":    finishBranchesSQL.text,
	"finishSQL":            finishSQL.text,
	"forgiveSQL":           forgiveSQL.text,
	"workerPoliciesSQL":    workerPoliciesSQL.text,
	"workerSQL":            workerSQL.text,
	"yieldSQL":             yieldSQL.text,
	"handBackSQL":          handBackSQL.text,
	"hasLeadSQL":           hasLeadSQL,
	"holdKeySQL":           holdKeySQL.text,
	"holdLaneSQL":          holdLaneSQL.text,
	"heartbeatSQL":         heartbeatSQL.text,
	"heldSQL":              heldSQL.text,
	"groupSettingsSQL":     groupSettingsSQL.text,
	"holdGroupSQL":         holdGroupSQL.text,
	"holdSQL":              holdSQL.text,
	"holdToEndSQL":         holdToEndSQL.text,
	"sameTxSQL":            sameTxSQL,
	"idBlocksSQL":          idBlocksSQL.text,
	"spareIDSQL":           spareIDSQL.text,
	"inheritKeysSQL":       inheritKeysSQL.text,
	"keepSQL":              keepSQL.text,
	"keepSettingsSQL":      keepSettingsSQL,
	"restoreSettingsSQL":   restoreSettingsSQL,
	"lanesWithWorkSQL":     lanesWithWorkSQL.text,
	"leaveSQL":             leaveSQL.text,
	"lockDeferralSQL":      lockDeferralSQL.text,
	"lockKeysSQL":          lockKeysSQL.text,
	"markThrottledSQL":     markThrottledSQL.text,
	"marksSQL":             marksSQL.text,
	"assignSubmissionSQL":  assignSubmissionSQL.text,
	"notifySQL":            notifySQL,
	"notifyThisSQL":        notifyThisSQL,
	"offBalanceSQL":        offBalanceSQL.text,
	"openWorkerSQL":        openWorkerSQL.text,
	"resultSQL":            resultSQL.text,
	"parkSQL":              parkSQL.text,
	"missedSQL":            missedSQL.text,
	"pinSQL":               pinSQL,
	"progressSQL":          progressSQL.text,
	"promoteSQL":           promoteSQL.text,
	"readSubmissionSQL":    readSubmissionSQL.text,
	"recoverPageSQL":       recoverPageSQL.text,
	"registerSQL":          registerSQL.text,
	"replaceSQL":           replaceSQL.text,
	"reserveKeysSQL":       reserveKeysSQL.text,
	"reserveSubmissionSQL": reserveSubmissionSQL.text,
	"revokeDeferralSQL":    revokeDeferralSQL.text,
	"revokePartsSQL":       revokePartsSQL.text,
	"settledSQL":           settledSQL.text,
	"settleHistorySQL":     settleHistorySQL,
	"settleSlotsSQL":       settleSlotsSQL.text,
	"shortWaitSQL":         shortWaitSQL,
	"staleResultSQL":       staleResultSQL.text,
	"submittedSQL":         submittedSQL.text,
	"sweepsDueSQL":         sweepsDueSQL,
	"sweptSQL":             sweptSQL.text,
	"takeLeadSQL":          takeLeadSQL,
	"takeStartsSQL":        takeStartsSQL.text,
	"giveStartsSQL":        giveStartsSQL.text,
	"throttleSQL":          throttleSQL.text,
	"tokenSQL":             tokenSQL.text,
	"voidSlotsSQL":         voidSlotsSQL.text,
	"waitingSQL":           waitingSQL.text,
}

func TestEveryStatementIsListed(t *testing.T) { plantest.Listed(t, statements) }

func TestEveryStatementPrepares(t *testing.T) { plantest.Prepare(t, pgtest.URL(t), statements) }

func TestRepeatableStatementsOnlyRead(t *testing.T) {
	t.Parallel()
	plantest.OnlyRead(t, pgtest.Pool(t), statements, ReadsOnly)
	is := is.New(t)
	is.True(ReadsOnly(`select id from trapeze.job where id = $1`))
	is.True(!ReadsOnly(claimSQL.text))
	is.True(!ReadsOnly(idBlocksSQL.text))
}
