package store

// LaneSlots, LaneWindow and KindSlots are the limits for the key of row w: see places.go.
const (
	LaneSlots  = laneSlots
	LaneWindow = laneWindow
	KindSlots  = kindSlots
)
