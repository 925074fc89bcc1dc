package devconf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
)

// From linux/ethtool.h.
const (
	ethtoolGetStrings    = 0x1b
	ethtoolGetSetInfo    = 0x37
	ethtoolGetFeatures   = 0x3a
	ethtoolSetFeatures   = 0x3b
	ethtoolFeatureSet    = 4  // ETH_SS_FEATURES
	ethtoolStringLength  = 32 // ETH_GSTRING_LEN
	ethtoolGetBlock      = 16 // size of struct ethtool_get_features_block: available, requested, active, never_changed
	ethtoolSetBlock      = 8  // size of struct ethtool_set_features_block: valid, requested
	featuresPerBlock     = 32
	ethtoolFeaturesLimit = 1024 // far above the kernel's 60-odd; a larger answer is rejected
)

// ethtoolRequest is struct ifreq with a pointer in its union, which has 24 bytes on 64-bit machines.
type ethtoolRequest struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// Ethtool makes requests about one device of the calling thread's namespace at a time.
type Ethtool struct {
	fd     int
	Device string
	// names are the kernel's features in the order of their bits, for all devices; nil before they are read.
	names []string
}

// OpenEthtool opens a socket for requests about a device, which may be set later. The caller must close it.
func OpenEthtool(device string) (*Ethtool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a socket for ethtool: %w", err)
	}
	return &Ethtool{fd: fd, Device: device}, nil
}

// Close closes the socket.
func (e *Ethtool) Close() { unix.Close(e.fd) }

// call makes one request; the kernel answers in the same buffer. The pointer to the buffer stays a pointer up to the system call, so that
// the buffer can neither move nor be freed before the kernel is done with it.
func (e *Ethtool) call(buffer []byte) error {
	request := &ethtoolRequest{data: unsafe.Pointer(unsafe.SliceData(buffer))}
	copy(request.name[:unix.IFNAMSIZ-1], e.Device)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(e.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(request)))
	runtime.KeepAlive(request)
	runtime.KeepAlive(buffer)
	if errno != 0 {
		return errno
	}
	return nil
}

// words returns a buffer of size bytes that starts with the words.
func words(size int, values ...uint32) []byte {
	buffer := make([]byte, size)
	for i, value := range values {
		binary.NativeEndian.PutUint32(buffer[4*i:], value)
	}
	return buffer
}

// features returns the names of the kernel's features in the order of their bits.
func (e *Ethtool) features() ([]string, error) {
	if e.names != nil {
		return e.names, nil
	}
	// struct ethtool_sset_info: cmd, reserved, sset_mask (64 bits), data[1].
	info := words(20, ethtoolGetSetInfo)
	binary.NativeEndian.PutUint64(info[8:], 1<<ethtoolFeatureSet)
	if err := e.call(info); err != nil {
		return nil, err
	}
	count := int(binary.NativeEndian.Uint32(info[16:]))
	if count == 0 || count > ethtoolFeaturesLimit {
		return nil, unix.EOPNOTSUPP
	}
	// struct ethtool_gstrings: cmd, string_set, len, data.
	text := words(12+count*ethtoolStringLength, ethtoolGetStrings, ethtoolFeatureSet, uint32(count))
	if err := e.call(text); err != nil {
		return nil, err
	}
	names := make([]string, count)
	for i := range names {
		names[i] = unix.ByteSliceToString(text[12+i*ethtoolStringLength : 12+(i+1)*ethtoolStringLength])
	}
	e.names = names
	return names, nil
}

// IsTxOffload reports whether a feature of the kernel (net/ethtool/common.c) leaves a packet unfinished on transmission: without its
// checksum, or not yet segmented. A packet socket on a veth would receive it unfinished.
func IsTxOffload(feature string) bool {
	return strings.HasPrefix(feature, "tx-") &&
		(strings.HasPrefix(feature, "tx-checksum-") || strings.HasSuffix(feature, "-segmentation"))
}

// txBits returns, block by block, the transmit offloads that can be changed and those of them that are active.
func (e *Ethtool) txBits() (changeable, active []uint32, err error) {
	names, err := e.features()
	if err != nil {
		return nil, nil, err
	}
	blocks := (len(names) + featuresPerBlock - 1) / featuresPerBlock
	answer := words(8+blocks*ethtoolGetBlock, ethtoolGetFeatures, uint32(blocks))
	if err := e.call(answer); err != nil {
		return nil, nil, err
	}
	wanted := make([]uint32, blocks)
	for i, name := range names {
		if IsTxOffload(name) {
			wanted[i/featuresPerBlock] |= 1 << (i % featuresPerBlock)
		}
	}
	changeable, active = make([]uint32, blocks), make([]uint32, blocks)
	for i := range wanted {
		block := answer[8+i*ethtoolGetBlock:]
		available, fixed := binary.NativeEndian.Uint32(block), binary.NativeEndian.Uint32(block[12:])
		changeable[i] = wanted[i] & available &^ fixed
		active[i] = changeable[i] & binary.NativeEndian.Uint32(block[8:])
	}
	return changeable, active, nil
}

// TxOffload reads whether any transmit offload is active: On, or Off if none is or can be.
func txOffload(device string) (link.Toggle, error) {
	tool, err := OpenEthtool(device)
	if err != nil {
		return link.Leave, err
	}
	defer tool.Close()
	return tool.TxOffload()
}

// TxOffload is the function of that name for the opened device.
func (e *Ethtool) TxOffload() (link.Toggle, error) {
	_, active, err := e.txBits()
	if errors.Is(err, unix.EOPNOTSUPP) {
		return link.Off, nil
	}
	if err != nil {
		return link.Leave, fmt.Errorf("reading tx offload of %s: %w", e.Device, err)
	}
	for _, bits := range active {
		if bits != 0 {
			return link.On, nil
		}
	}
	return link.Off, nil
}

// SetTxOffload turns transmit checksumming and all segmentation on or off.
func SetTxOffload(device string, state link.Toggle) error {
	tool, err := OpenEthtool(device)
	if err != nil {
		return err
	}
	defer tool.Close()
	changeable, _, err := tool.txBits()
	if errors.Is(err, unix.EOPNOTSUPP) && state == link.Off {
		return nil
	}
	if err == nil {
		request := words(8+len(changeable)*ethtoolSetBlock, ethtoolSetFeatures, uint32(len(changeable)))
		for i, bits := range changeable {
			block := request[8+i*ethtoolSetBlock:]
			binary.NativeEndian.PutUint32(block, bits)
			if state == link.On {
				binary.NativeEndian.PutUint32(block[4:], bits)
			}
		}
		err = tool.call(request)
	}
	if err != nil {
		return fmt.Errorf("turning tx offload of %s %s: %w", device, state, err)
	}
	return nil
}
